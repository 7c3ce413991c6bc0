-- Organisations that may not use runners now. A row is there while one is disabled: their devices are not let in, none of
-- their jobs is assigned, and none is created.
CREATE TABLE :"schema".disabled_organisations (
    org_id              text        NOT NULL,
    disabled_at         timestamptz NOT NULL,
    reason              text,
    CONSTRAINT disabled_organisations_pkey PRIMARY KEY (org_id)
);
