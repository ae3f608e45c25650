-- Empty for ever: stores were written while this number was reserved. What it was meant for is number 17.
SELECT 1;
