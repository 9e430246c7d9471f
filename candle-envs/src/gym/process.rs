//! A process with some of the environments, and the memory that it shares.

use super::{GymError, Options, PREFIX, Widths};
use crate::{EnvError, Result, Spec};
use candle_models::agent::{Component, Observation};
use memmap2::MmapMut;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// What the processes run.
const SERVER: &str = include_str!("server.py");

/// What an environment is to do, by the numbers that the process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Todo {
    Nothing = 0,
    Step = 1,
    /// With random numbers from where they are.
    Reset = 2,
    /// With those of a seed.
    Seed = 3,
}

/// What the environments of a process show and take.
#[derive(Deserialize)]
struct Described {
    observation: Vec<Observation>,
    action: Vec<Component>,
    max_steps: Option<u32>,
}

/// What went wrong in a process.
#[derive(Deserialize)]
struct Failed {
    kind: Kind,
    text: String,
    /// Which of the environments of the process.
    lane: usize,
    during: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Import,
    Make,
    Space,
    Raised,
}

/// A process that has been started, and may still be importing and making environments. It ends when it is dropped.
#[derive(Debug)]
pub struct Starting {
    /// The name of its environments.
    env: String,
    python: String,
    lanes: Range<usize>,
    child: Child,
    /// There until it is to end.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    file: File,
}

impl Drop for Starting {
    fn drop(&mut self) {
        // The end of its input is what it ends by; it closes its environments before.
        self.requests = None;
        // There is nobody to be told of an error.
        let _ = self.child.wait();
    }
}

/// A file that has no name, in memory where the system has a folder there.
fn nameless() -> io::Result<File> {
    tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile())
}

impl Starting {
    /// One answer: what it says, if it is to say something.
    fn answer<T: DeserializeOwned>(&mut self, says: bool) -> Result<Option<T>> {
        let mut first = [0];
        if self.answers.read_exact(&mut first).is_err() {
            return Err(self.ended());
        }
        let mut line = String::new();
        if (says || first != *b".") && self.answers.read_line(&mut line).is_err() {
            return Err(self.ended());
        }
        let garbled = |_| self.error(GymError::Process(format!("expected an answer, found {:?}", format!("{}{line}", first[0] as char))));
        match (&first, says) {
            (b".", true) => serde_json::from_str(&line).map(Some).map_err(garbled),
            (b".", false) => Ok(None),
            _ => {
                let failed: Failed = serde_json::from_str(&line).map_err(garbled)?;
                Err(self.failed(failed))
            }
        }
    }

    fn error(&self, error: GymError) -> EnvError {
        EnvError::Gym { env: self.env.clone(), lanes: self.lanes.clone(), error }
    }

    /// The error that it has ended, with the reason.
    fn ended(&mut self) -> EnvError {
        let error = match self.child.wait() {
            Ok(status) => GymError::Ended(status),
            Err(error) => GymError::Process(error.to_string()),
        };
        self.error(error)
    }

    fn failed(&self, Failed { kind, text, lane, during }: Failed) -> EnvError {
        let number = self.lanes.start + lane;
        let error = match kind {
            Kind::Import => return self.error(GymError::NoGymnasium { python: self.python.clone(), reason: text }),
            Kind::Make => GymError::Make(text),
            Kind::Space => GymError::Space(text),
            Kind::Raised => GymError::Raised { during, traceback: text },
        };
        EnvError::Gym { env: self.env.clone(), lanes: number..number + 1, error }
    }

    /// Waits until its environments are there.
    pub fn ready(mut self) -> Result<(Process, Spec)> {
        let Described { observation, action, max_steps } = match self.answer(true)? {
            Some(described) => described,
            None => return Err(self.ended()),
        };
        let spec = Spec { name: self.env.clone().into(), observation, action, players: 1, max_steps };
        let layout = Layout::new(self.lanes.len(), &Widths::new(&spec));
        let length = self.file.metadata().map(|metadata| metadata.len());
        if !length.is_ok_and(|length| length == layout.bytes() as u64) {
            let reason = format!("expected {} bytes of shared memory, found others", layout.bytes());
            return Err(self.error(GymError::Process(reason)));
        }
        // SAFETY: the file has no name, so that only this process and that one have it. That one writes between a question and its answer alone,
        // when nothing here is borrowed from the memory, and never changes its length.
        let shared = unsafe { MmapMut::map_mut(&self.file) };
        let shared = shared.map_err(|error| self.error(GymError::Process(error.to_string())))?;
        Ok((Process { running: self, shared, layout }, spec))
    }
}

/// Where the arrays end that the processes share, in bytes; those with the widest values come first, so that all are aligned.
#[derive(Debug)]
struct Layout([usize; 9]);

impl Layout {
    fn new(lanes: usize, Widths { floats, columns, numbers, legal }: &Widths) -> Self {
        let mut end = 0;
        Self([8, 8, 8 * columns, 4 * numbers, 4 * floats, 1, 1, 1, *legal].map(|bytes| {
            end += lanes * bytes;
            end
        }))
    }

    fn bytes(&self) -> usize {
        self.0[8]
    }

    fn of(&self, array: usize) -> Range<usize> {
        array.checked_sub(1).map_or(0, |before| self.0[before])..self.0[array]
    }
}

/// A process with environments.
#[derive(Debug)]
pub struct Process {
    running: Starting,
    shared: MmapMut,
    layout: Layout,
}

impl Process {
    /// Starts one for environments of those numbers.
    pub fn start(options: &Options, id: &str, lanes: Range<usize>) -> Result<Starting> {
        let (env, python) = (format!("{PREFIX}:{id}"), options.python.to_string_lossy().into_owned());
        let failed = |error: GymError| EnvError::Gym { env: env.clone(), lanes: lanes.clone(), error };
        let file = nameless().map_err(|error| failed(GymError::Process(format!("memory to share: {error}"))))?;
        let descriptor = file.as_raw_fd();
        let mut command = Command::new(&options.python);
        command.args(["-c", SERVER, id, &lanes.len().to_string(), &descriptor.to_string()]);
        // A group of its own: what a terminal or a launcher tells this process to do, it decides about.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let inherit = move || {
            // SAFETY: a call without memory.
            match unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: one system call between fork and exec, on a file that is open until then.
        unsafe { command.pre_exec(inherit) };
        let mut child =
            command.spawn().map_err(|error| failed(GymError::NoPython { python: python.clone(), reason: error.to_string() }))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed(GymError::Process("no pipes".to_owned())));
        };
        Ok(Starting { env, python, lanes, child, requests: Some(requests), answers: BufReader::new(answers), file })
    }

    /// Its number in the system.
    pub fn id(&self) -> u32 {
        self.running.child.id()
    }

    /// The numbers of its environments.
    pub fn lanes(&self) -> Range<usize> {
        self.running.lanes.clone()
    }

    /// Tells it to do what is to be done. Whether there is anything.
    pub fn send(&mut self) -> Result<bool> {
        if self.shared[self.layout.of(5)].iter().all(|todo| *todo == Todo::Nothing as u8) {
            return Ok(false);
        }
        match self.running.requests.as_mut().map(|requests| requests.write_all(b"r")) {
            Some(Ok(())) => Ok(true),
            _ => Err(self.running.ended()),
        }
    }

    /// Waits until it has done it.
    pub fn answer(&mut self) -> Result<()> {
        self.running.answer::<()>(false).map(drop)
    }

    /// The seed of each for [`Todo::Seed`].
    pub fn seeds(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.shared[self.layout.of(0)])
    }

    /// The rewards of the last step.
    pub fn rewards(&self) -> &[f64] {
        bytemuck::cast_slice(&self.shared[self.layout.of(1)])
    }

    /// Classes of actions, `[lanes, columns]`.
    pub fn classes(&mut self) -> &mut [i64] {
        bytemuck::cast_slice_mut(&mut self.shared[self.layout.of(2)])
    }

    /// Numbers of actions, `[lanes, numbers]`.
    pub fn numbers(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.shared[self.layout.of(3)])
    }

    /// What is seen, `[lanes, floats]`.
    pub fn floats(&self) -> &[f32] {
        bytemuck::cast_slice(&self.shared[self.layout.of(4)])
    }

    /// What each is to do.
    pub fn todo(&mut self) -> &mut [u8] {
        &mut self.shared[self.layout.of(5)]
    }

    /// Whether the game is over, 0 or not.
    pub fn terminated(&self) -> &[u8] {
        &self.shared[self.layout.of(6)]
    }

    /// Whether the episode ends although the game goes on, likewise.
    pub fn truncated(&self) -> &[u8] {
        &self.shared[self.layout.of(7)]
    }

    /// Which classes are legal, likewise.
    pub fn legal(&self) -> &[u8] {
        &self.shared[self.layout.of(8)]
    }
}
