-- Statistics: PostgreSQL samples values of columns for its planner, and VACUUM leaves them alone. Content that is
-- erased must not stay in them.

-- Of these a sample is taken again whenever something was erased, which costs little if it is small.
ALTER TABLE tidelog.log ALTER COLUMN body SET STATISTICS 1, ALTER COLUMN data SET STATISTICS 1;
ALTER TABLE tidelog.dedupe ALTER COLUMN key SET STATISTICS 1;

-- These tables may be empty, and nothing is sampled then: what was sampled before would stay.
ALTER TABLE tidelog.channels_message ALTER COLUMN state SET STATISTICS 0, ALTER COLUMN base SET STATISTICS 0;
ALTER TABLE tidelog.announcement ALTER COLUMN payload SET STATISTICS 0;

-- The type is the same, and no row is written; but the samples that are there go. Not where an operator's view
-- reads the column.
DO $$
BEGIN
  ALTER TABLE tidelog.channels_message ALTER COLUMN state TYPE BYTEA, ALTER COLUMN base TYPE BYTEA;
EXCEPTION WHEN feature_not_supported THEN NULL;
END $$;

DO $$
BEGIN
  ALTER TABLE tidelog.announcement ALTER COLUMN payload TYPE BYTEA;
EXCEPTION WHEN feature_not_supported THEN NULL;
END $$;
