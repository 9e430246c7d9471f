//! A run that goes no further than it is read: its standard error is a socket that holds less than two lines, so that a line which nobody takes
//! stops it there. What is to come in the middle of a run then does, however fast the machine is.

use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A run that does not say or do anything for so long hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The name of the newest checkpoint; empty before the first.
pub fn latest(out: &Path) -> String {
    std::fs::read_to_string(out.join("checkpoints/latest")).unwrap_or_default()
}

/// A run that reports every step. Dropped, it is killed.
pub struct Held {
    child: Option<Child>,
    said: UnixStream,
}

impl Held {
    pub fn start(command: &mut Command) -> Self {
        let (said, error) = UnixStream::pair().unwrap();
        said.set_read_timeout(Some(PATIENCE)).unwrap();
        let least: libc::c_int = 1;
        // SAFETY: the option's value is an integer that outlives the call. The system raises it to the least that it allows.
        let code = unsafe {
            let size = size_of_val(&least) as libc::socklen_t;
            libc::setsockopt(error.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const least).cast(), size)
        };
        assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
        let child = command.stdout(Stdio::piped()).stderr(OwnedFd::from(error)).spawn().unwrap();
        // The command keeps its end of the socket open until it is given another.
        command.stderr(Stdio::null());
        Self { child: Some(child), said }
    }

    pub fn id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Takes a line. Byte by byte: what is taken is what lets the run go on.
    fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while byte != *b"\n" {
            assert_eq!(self.said.read(&mut byte).expect("the run hangs"), 1, "it ended after {:?}", String::from_utf8_lossy(&line));
            line.extend(byte);
        }
        String::from_utf8(line).unwrap()
    }

    /// Lets it make so many steps. It is in the next one, or waits at its end, when this returns.
    pub fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            while !self.line().starts_with("step ") {}
        }
    }

    /// Waits for `ready`, which comes without that the run goes on.
    pub fn wait(&mut self, what: &str, ready: impl Fn() -> bool) {
        let start = Instant::now();
        while !ready() {
            assert!(start.elapsed() < PATIENCE, "no {what} within {PATIENCE:?}");
            sleep(Duration::from_millis(1));
        }
    }

    /// Lets it make `steps` steps, among them one that is saved, and waits until that is done.
    pub fn saved(command: &mut Command, out: &Path, steps: usize) -> Self {
        let before = latest(out);
        let mut run = Self::start(command);
        run.steps(steps);
        run.wait("checkpoint", || latest(out) != before);
        run
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.end();
    }

    /// Lets it run to its end: exit code and what it said from here on.
    pub fn finish(mut self) -> Output {
        let mut stderr = Vec::new();
        self.said.read_to_end(&mut stderr).expect("the run hangs");
        let output = self.child.take().unwrap().wait_with_output().unwrap();
        Output { stderr, ..output }
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.end();
    }
}
