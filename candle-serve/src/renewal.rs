//! Files that are read anew when they change: keys and certificates are replaced while a server runs.

use crate::listen::Phase;
use crate::log::Log;
use candle_models::{Result, hex};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// How often files are looked at. What has changed is read once it has stayed the same for as long: files that belong together, or are
/// written in pieces, are not replaced at one moment.
const EVERY: Duration = Duration::from_secs(1);

type Read<T> = Box<dyn Fn() -> Result<T> + Send + Sync>;

/// What stands in some files.
pub(crate) struct Renewed<T> {
    what: &'static str,
    files: Vec<PathBuf>,
    read: Read<T>,
    current: RwLock<Arc<T>>,
    seen: Mutex<Seen>,
}

/// Hashes of the files.
struct Seen {
    /// When they were read, whether they could be used or not.
    read: String,
    /// When they were looked at last.
    last: String,
}

impl<T> Renewed<T> {
    /// What `read` makes of those files, called `what` in the log.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn open(what: &'static str, files: Vec<PathBuf>, read: impl Fn() -> Result<T> + Send + Sync + 'static) -> Result<Self> {
        // Before they are read: what is written in between is a change.
        let hash = hash(&files);
        let current = RwLock::new(Arc::new(read()?));
        Ok(Self { what, files, read: Box::new(read), current, seen: Mutex::new(Seen { read: hash.clone(), last: hash }) })
    }

    /// What was read last and could be used.
    pub fn get(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A part of a server that can be renewed.
pub(crate) trait Renew: Send + Sync {
    /// Looks at the files, and reads them anew if they have changed and stay as they are, or `at_once`. What cannot be used changes nothing.
    fn look(&self, at_once: bool, log: &Log);
}

impl<T: Send + Sync> Renew for Renewed<T> {
    fn look(&self, at_once: bool, log: &Log) {
        let now = hash(&self.files);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stays = at_once || seen.last == now;
        seen.last.clone_from(&now);
        if !stays || seen.read == now {
            return;
        }
        seen.read = now;
        match (self.read)() {
            Ok(new) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new);
                log.server(&format!("{} were read anew", self.what));
            }
            Err(error) => log.not_renewed(self.what, &error),
        }
    }
}

/// Of all files together; of one that cannot be read, why.
fn hash(files: &[PathBuf]) -> String {
    let mut hash = Sha256::new();
    for file in files {
        match std::fs::read(file) {
            Ok(bytes) => hash.update([&bytes.len().to_le_bytes()[..], &bytes].concat()),
            Err(error) => hash.update(error.to_string()),
        }
    }
    hex(hash.finalize())
}

/// Looks at all parts now and then, and when it is asked to, until the server is closing.
pub(crate) async fn renew(parts: Vec<Arc<dyn Renew>>, log: Arc<Log>, asked: Arc<Notify>, mut phase: watch::Receiver<Phase>) {
    if parts.is_empty() {
        return;
    }
    let parts: Arc<[_]> = parts.into();
    loop {
        let at_once = tokio::select! {
            () = tokio::time::sleep(EVERY) => false,
            () = asked.notified() => true,
            // The server has gone as well if nobody can say so any more.
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => return,
        };
        let (parts, log) = (parts.clone(), log.clone());
        // Files may lie on a disk that is slow. A panic has been reported by the panic hook; the next look goes on.
        let _ = tokio::task::spawn_blocking(move || parts.iter().for_each(|part| part.look(at_once, &log))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::LogFormat;
    use candle_models::Error;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn files_are_read_once_for_each_change_and_faults_change_nothing() -> std::io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("number");
        let (log, reads) = (Log::new(LogFormat::default()), Arc::new(AtomicUsize::new(0)));
        let write = |text: &str| std::fs::write(&path, text);
        write("1")?;
        let read = {
            let (path, reads) = (path.clone(), reads.clone());
            move || {
                reads.fetch_add(1, Relaxed);
                let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
                text.parse::<u32>().map_err(|e| Error::file(&path, e))
            }
        };
        let renewed = Renewed::open("numbers", vec![path.clone()], read).map_err(std::io::Error::other)?;
        let look = |at_once| {
            renewed.look(at_once, &log);
            (*renewed.get(), reads.load(Relaxed))
        };
        assert_eq!((look(false), look(true)), ((1, 1), (1, 1)));
        // A change is waited for to end, unless somebody says that it has.
        write("2")?;
        assert_eq!(look(false), (1, 1));
        write("23")?;
        assert_eq!((look(false), look(false), look(false)), ((1, 1), (23, 2), (23, 2)));
        write("4")?;
        assert_eq!(look(true), (4, 2 + 1));
        // What cannot be used is tried once, and so is a file that is not there.
        write("five")?;
        assert_eq!((look(true), look(true), look(false)), ((4, 4), (4, 4), (4, 4)));
        std::fs::remove_file(&path)?;
        assert_eq!((look(false), look(false), look(false)), ((4, 4), (4, 5), (4, 5)));
        write("4")?;
        assert_eq!((look(true), look(true)), ((4, 6), (4, 6)));
        Ok(())
    }
}
