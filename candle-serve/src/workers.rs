//! Threads that serve connections, each with a runtime of its own.
//!
//! A runtime of several threads wakes another one whenever a task becomes ready, in case there is more to be done: two or three system calls a
//! request, and half of the requests go on on another processor than their bytes came to. Here a connection stays on its thread, and a
//! request whose step is short is answered without waking anybody.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// As many as there are processors.
pub(crate) struct Workers(Vec<Worker>);

struct Worker {
    runtime: Handle,
    /// How many connections it has.
    connections: Arc<AtomicUsize>,
    /// Ends the thread when it is dropped.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts them.
    ///
    /// # Errors
    /// If the system has no more threads or files.
    pub fn start() -> io::Result<Self> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..count).map(|number| Worker::start(&format!("candle-serve-{number}"))).collect::<io::Result<_>>().map(Self)
    }

    /// Serves a connection on the thread that has the fewest.
    pub fn serve(&self, connection: impl Future<Output = ()> + Send + 'static) {
        let Some(worker) = self.0.iter().min_by_key(|worker| worker.connections.load(Relaxed)) else {
            unreachable!("there is a processor, and a thread for it")
        };
        let counted = Counted::new(worker.connections.clone());
        worker.runtime.spawn(async move {
            connection.await;
            drop(counted);
        });
    }
}

impl Worker {
    fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (end, ended)) = (runtime.handle().clone(), oneshot::channel());
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // An error says as well that the other side is gone.
            let _ = runtime.block_on(ended);
            // A client that has not taken its answer by now does not keep the process.
            runtime.shutdown_background();
        })?;
        Ok(Self { runtime: handle, connections: Arc::default(), end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// A connection that is counted as long as this is there.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(connections: Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Relaxed);
        Self(connections)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::{Barrier, mpsc};

    #[test]
    fn connections_are_spread_over_the_threads_and_stay_there() {
        let workers = Workers::start().unwrap();
        let count = workers.0.len();
        let (tell, told) = mpsc::channel();
        let (release, held) = tokio::sync::watch::channel(false);
        for _ in 0..count {
            let (tell, mut held) = (tell.clone(), held.clone());
            workers.serve(async move {
                let first = std::thread::current().id();
                let _ = held.wait_for(|released| *released).await;
                tell.send((first, std::thread::current().id())).unwrap();
            });
        }
        release.send_replace(true);
        let threads: HashSet<_> = (0..count)
            .map(|_| {
                let (first, last) = told.recv().unwrap();
                assert_eq!(first, last);
                first
            })
            .collect();
        assert_eq!(threads.len(), count);
    }

    #[test]
    fn what_is_unfinished_in_the_end_is_dropped() {
        let workers = Workers::start().unwrap();
        let (barrier, dropped) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
        let (began, counted) = (barrier.clone(), Counted::new(dropped.clone()));
        workers.serve(async move {
            began.wait();
            std::future::pending::<()>().await;
            drop(counted);
        });
        barrier.wait();
        assert_eq!(dropped.load(Relaxed), 1);
        drop(workers);
        assert_eq!(dropped.load(Relaxed), 0);
    }
}
