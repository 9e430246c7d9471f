//! Snapshots in Redis, or another server of its protocol.

use super::Store;
use ::redis::{Client, Cmd, Connection, FromRedisValue, RedisError, cmd};
use candle_models::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// For a connection, for sending a command and for its answer: sequences wait for no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long nothing is sent after a failure: thousands of sequences that are written one after the other do not wait for [`PATIENCE`] each.
const PAUSE: Duration = Duration::from_secs(1);
/// Connections that stay open: as many as write at the same time.
const CONNECTIONS: usize = 8;

/// A key for each snapshot, by the names of its model and sequence.
pub(crate) struct Redis {
    client: Client,
    /// Where it is, without who asks it.
    address: String,
    /// How long a snapshot is kept that is not written again, in seconds.
    keep: Option<u64>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connections: Vec<Connection>,
    /// When it failed, and how.
    failed: Option<(Instant, String)>,
}

impl Redis {
    /// The server at a URL: `redis://`, `rediss://` or `redis+unix://`. Connects, so that what is wrong with it is said now.
    pub fn open(url: &str, keep: Option<Duration>) -> candle_models::Result<Self> {
        let invalid = |error: RedisError| Error::Input(format!("snapshots: expected redis://[USER:PASSWORD@]HOST:PORT[/DB]: {error}"));
        let client = Client::open(url).map_err(invalid)?;
        let address = client.get_connection_info().addr().to_string();
        let keep = keep.map(|keep| keep.as_secs().max(1));
        let store = Self { client, address, keep, state: Mutex::default() };
        store.ask::<()>(&cmd("PING"))?;
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self) -> Result<Connection, RedisError> {
        let connection = self.client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.set_write_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// A connection that was used before; `None` where a new one is needed.
    fn connection(&self) -> candle_models::Result<Option<Connection>> {
        let mut state = self.state();
        match &state.failed {
            Some((at, error)) if at.elapsed() < PAUSE => Err(self.fault(error)),
            _ => Ok(state.connections.pop()),
        }
    }

    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> candle_models::Result<T> {
        if let Some(mut connection) = self.connection()? {
            match command.query(&mut connection) {
                // It may have been closed by the other side since it was used, which is no reason to fail. What a command does, it can do twice.
                Err(error) if error.is_unrecoverable_error() && !error.is_timeout() => drop(connection),
                result => return self.finish(connection, result),
            }
        }
        match self.connect() {
            Ok(mut connection) => {
                let result = command.query(&mut connection);
                self.finish(connection, result)
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Keeps a connection that is still good for something.
    fn finish<T>(&self, connection: Connection, result: Result<T, RedisError>) -> candle_models::Result<T> {
        match result {
            Err(error) if error.is_unrecoverable_error() => Err(self.failed(&error)),
            result => {
                let mut state = self.state();
                state.failed = None;
                if state.connections.len() < CONNECTIONS {
                    state.connections.push(connection);
                }
                result.map_err(|error| self.fault(&error.to_string()))
            }
        }
    }

    fn failed(&self, error: &RedisError) -> Error {
        let error = error.to_string();
        let fault = self.fault(&error);
        let mut state = self.state();
        state.failed = Some((Instant::now(), error));
        // The others are of the same server.
        state.connections.clear();
        fault
    }

    fn fault(&self, error: &str) -> Error {
        Error::Input(format!("Redis at {}: {error}", self.address))
    }
}

fn key(model: &str, key: &str) -> String {
    format!("candle-sequence:{model}:{key}")
}

impl Store for Redis {
    fn put(&self, model: &str, name: &str, bytes: &[u8]) -> candle_models::Result<()> {
        let mut command = cmd("SET");
        command.arg(key(model, name)).arg(bytes);
        if let Some(keep) = self.keep {
            command.arg("EX").arg(keep);
        }
        self.ask(&command)
    }

    fn get(&self, model: &str, name: &str) -> candle_models::Result<Option<Vec<u8>>> {
        self.ask(cmd("GET").arg(key(model, name)))
    }

    fn remove(&self, model: &str, name: &str) -> candle_models::Result<()> {
        self.ask(cmd("DEL").arg(key(model, name)))
    }

    /// Redis does that by itself.
    fn sweep(&self) -> candle_models::Result<()> {
        Ok(())
    }
}
