-- What a server says of the limits that its program sets for all servers together, by kind, so that people can be told
-- what holds a job: {"thumbnail": {"fleet": 10, "tenant": 2, "fair": true, "rate_count": 5, "rate_s": 60}}.

ALTER TABLE :"schema".servers ADD COLUMN limits jsonb NOT NULL DEFAULT '{}';
