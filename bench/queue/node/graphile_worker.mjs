// graphile-worker, by its public interface; the settings come from bench/queue/adapters.
import { Logger, makeWorkerUtils, run } from 'graphile-worker'

const logger = new Logger(() => (level, message) => {
  if (level === 'error') console.error(message)
})

export const open = (dsn) => makeWorkerUtils({ connectionString: dsn, logger })
export const close = (utils) => utils.release()
export const enqueueOne = (utils, payload) => utils.addJob('noop', payload)
export const enqueueMany = (utils, payloads) =>
  utils.addJobs(payloads.map((payload) => ({ identifier: 'noop', payload })))

export async function setup (dsn) {
  const utils = await open(dsn)
  await utils.migrate()
  await close(utils)
}

export async function worker (dsn, handled, { localQueue, completeJobBatchDelay }) {
  const runner = await run({
    preset: {
      worker: {
        connectionString: dsn,
        logger,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: localQueue },
        completeJobBatchDelay,
        failJobBatchDelay: 0
      }
    },
    taskList: { noop: async (payload) => handled(payload) },
    noHandleSignals: true
  })
  await runner.promise
}
