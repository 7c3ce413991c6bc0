-- What a server says of what holds its jobs back beside the limits of their kinds, so that people can be told by another
-- process: its CPU slots, its share of the slots of exec servers, and its calls that wait there. See rota.queue.standing.

ALTER TABLE :"schema".servers ADD COLUMN facts jsonb NOT NULL DEFAULT '{}';
