-- Versions of channel messages that keep the data refer to it (`data_of` in their body). Nothing stored changes;
-- but an earlier program would show such data as gone, so it must not open this store.
SELECT 1;
