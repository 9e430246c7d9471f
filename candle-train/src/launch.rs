//! Ranks on this machine without Python: a process for each, whose output bears its number. The first that fails ends the
//! others, and is named.

use candle_models::{Error, Result};
use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM, SIGUSR1};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ranks to start here.
#[derive(Debug, Clone)]
pub struct Ranks {
    /// Processes on this machine.
    pub nproc: usize,
    /// Machines; each starts its own.
    pub nnodes: usize,
    /// This machine's number.
    pub node_rank: usize,
    /// Where rank 0 is, as every machine reaches it.
    pub master_addr: String,
    /// A port that is free there, as is the next one.
    pub master_port: u16,
    /// How long ranks may take to end after a signal, or after another has failed, before they are killed.
    pub grace: Duration,
}

/// How the ranks of this machine ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// All with exit code 0.
    Well,
    /// One failed first.
    Badly {
        /// Its rank.
        rank: usize,
        /// Its exit code, or 128 and its signal.
        code: u8,
        /// What happened: exit code or signal, and its last line on standard error.
        why: String,
    },
}

/// Starts `program`, once for every rank, with the variables that torchrun sets, and waits until all have ended.
///
/// # Errors
/// Where numbers do not fit, or the program cannot be started.
pub fn run(ranks: &Ranks, program: &dyn Fn() -> Command) -> Result<Ended> {
    let Ranks { nproc, nnodes, node_rank, .. } = *ranks;
    if nproc == 0 || nnodes == 0 || node_rank >= nnodes {
        return Err(Error::Input(format!("launch: {nproc} processes on machine {node_rank} of {nnodes}")));
    }
    let signal = signals()?;
    let mut processes = Processes(Vec::new());
    for local in 0..nproc {
        let mut command = program();
        let (rank, size) = (node_rank * nproc + local, nnodes * nproc);
        for (name, value) in [("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", local), ("LOCAL_WORLD_SIZE", nproc)] {
            command.env(name, value.to_string());
        }
        command.env("MASTER_ADDR", &ranks.master_addr).env("MASTER_PORT", ranks.master_port.to_string());
        // Where srun started this command: its numbers are the machine's.
        command.env_remove("SLURM_PROCID");
        processes.0.push(Process::start(rank, &mut command)?);
    }
    Ok(processes.wait(&signal, ranks.grace))
}

/// The last signal that came, 0 for none.
fn signals() -> Result<Arc<AtomicUsize>> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGINT] {
        let value = usize::try_from(number).unwrap_or_default();
        signal_hook::flag::register_usize(number, signal.clone(), value).map_err(|e| Error::Input(format!("signal {number}: {e}")))?;
    }
    Ok(signal)
}

fn take(signal: &AtomicUsize) -> Option<i32> {
    i32::try_from(signal.swap(0, Ordering::Relaxed)).ok().filter(|number| *number != 0)
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy)]
enum To {
    /// A child.
    Child,
    /// A child and what it has started.
    Group,
}

/// Signals a child that has not been waited for.
fn send(child: &Child, to: To, number: i32) {
    if let Ok(id) = i32::try_from(child.id()) {
        let target = match to {
            To::Child => id,
            To::Group => -id,
        };
        // SAFETY: no memory is involved. The child has not been waited for, so its number is no other process's or group's.
        unsafe { libc::kill(target, number) };
    }
}

/// One rank.
struct Process {
    rank: usize,
    child: Child,
    status: Option<ExitStatus>,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
}

impl Process {
    fn start(rank: usize, command: &mut Command) -> Result<Self> {
        let name = PathBuf::from(command.get_program());
        // A group of its own: Ctrl-C reaches it through this process, once.
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().map_err(|cause| Error::Io { path: name, cause })?;
        let out = child.stdout.take().map(|pipe| std::thread::spawn(move || pass(rank, pipe, std::io::stdout())));
        let err = child.stderr.take().map(|pipe| std::thread::spawn(move || pass(rank, pipe, std::io::stderr())));
        Ok(Self { rank, child, status: None, out, err })
    }

    fn signal(&self, number: i32) {
        if self.status.is_none() {
            send(&self.child, To::Group, number);
        }
    }

    /// Its last line on standard error, once it has ended.
    fn last_line(&mut self) -> String {
        // A grandchild that holds the pipe open must not hold up the others' end for long.
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.err.as_ref().is_some_and(|t| !t.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let done = self.err.take_if(|t| t.is_finished());
        done.and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

/// Copies lines with the rank before them; returns the last that says something.
fn pass(rank: usize, from: impl Read, mut to: impl Write) -> String {
    let mut last = String::new();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        // A progress bar writes many lines over each other.
        let text = text.trim_end().rsplit('\r').next().unwrap_or_default();
        if !text.trim().is_empty() {
            text.clone_into(&mut last);
        }
        // One write a line: lines of ranks do not mix. A closed standard output ends nothing here.
        let _ = to.write_all(format!("[rank {rank}] {text}\n").as_bytes());
        line.clear();
    }
    last
}

/// The ranks here. Dropped, as when one could not be started, it kills those that live.
struct Processes(Vec<Process>);

impl Processes {
    fn wait(&mut self, signal: &AtomicUsize, grace: Duration) -> Ended {
        let mut ended = Ended::Well;
        let mut deadline: Option<Instant> = None;
        loop {
            if let Some(number) = take(signal) {
                self.0.iter().for_each(|p| p.signal(number));
                deadline.get_or_insert(Instant::now() + grace);
            }
            let mut living = false;
            for process in &mut self.0 {
                if process.status.is_none() {
                    process.status = process.child.try_wait().unwrap_or(None);
                    living |= process.status.is_none();
                    if let Some(status) = process.status.filter(|s| !s.success() && ended == Ended::Well) {
                        ended = failure(process, status);
                    }
                }
            }
            if let Ended::Badly { rank, why, .. } = &ended
                && deadline.is_none()
            {
                crate::parallel::tell(&format_args!("rank {rank} {why}; ending the others"));
                self.0.iter().for_each(|p| p.signal(SIGTERM));
                // They wait for the one that is gone: there is no step to finish.
                deadline = Some(Instant::now() + grace.min(Duration::from_secs(5)));
            }
            if !living {
                break;
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                self.0.iter().for_each(|p| p.signal(SIGKILL));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for process in &mut self.0 {
            process.last_line();
            let _ = process.out.take_if(|t| t.is_finished()).map(JoinHandle::join);
        }
        ended
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            process.signal(SIGKILL);
            let _ = process.child.wait();
        }
    }
}

fn failure(process: &mut Process, status: ExitStatus) -> Ended {
    let (code, how) = match (status.code(), status.signal()) {
        (Some(code), _) => (u8::try_from(code).unwrap_or(1), format!("ended with exit code {code}")),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            let name = signal_hook::low_level::signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned);
            (u8::try_from(128 + signal).unwrap_or(1), format!("was ended by {name}"))
        }
    };
    let line = process.last_line();
    let why = if line.is_empty() { how } else { format!("{how}: {line}") };
    Ended::Badly { rank: process.rank, code, why }
}

/// `mpirun` for ranks on this machine's processors, as far as the program to run.
///
/// # Errors
/// Where there is no `mpirun`: the package that has it.
pub fn mpirun(nproc: usize) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("mpirun")).find(|file| file.is_file());
    let found = found.ok_or_else(|| Error::Input("launch: no mpirun in PATH; in Debian it is in the package openmpi-bin".into()))?;
    let mut command = Command::new(found);
    // Threads of one rank are not bound to one core; more ranks than cores are the caller's wish.
    command.args(["-n", &nproc.to_string(), "--bind-to", "none", "--oversubscribe"]);
    // Containers run as root.
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    Ok(command)
}

/// Runs `mpirun`; its exit code is that of the rank that failed first.
///
/// On SIGTERM it would give its ranks a second, and then kill them. SIGUSR1 it passes on, so the first signal becomes that: ranks
/// finish their step and save. A second one ends `mpirun`.
///
/// # Errors
/// Where it cannot be started.
pub fn run_mpirun(command: &mut Command) -> Result<u8> {
    let name = PathBuf::from(command.get_program());
    let failed = |cause| Error::Io { path: name.clone(), cause };
    let signal = signals()?;
    let mut child = command.stdin(Stdio::null()).process_group(0).spawn().map_err(failed)?;
    let mut numbers = [SIGUSR1].into_iter();
    loop {
        if take(&signal).is_some() {
            // Its ranks are in groups of their own.
            send(&child, To::Child, numbers.next().unwrap_or(SIGTERM));
        }
        if let Some(status) = child.try_wait().map_err(failed)? {
            let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
            return Ok(u8::try_from(code).unwrap_or(1));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(nproc: usize) -> Ranks {
        let grace = Duration::from_secs(30);
        Ranks { nproc, nnodes: 1, node_rank: 0, master_addr: "127.0.0.1".into(), master_port: 29500, grace }
    }

    fn shell(script: &'static str) -> impl Fn() -> Command {
        move || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        }
    }

    #[test]
    fn every_rank_has_its_variables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        let program = || {
            let mut command = Command::new("sh");
            command
                .args(["-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT >$RANK"])
                .current_dir(&path);
            command
        };
        assert_eq!(run(&Ranks { nnodes: 2, node_rank: 1, ..ranks(2) }, &program).unwrap(), Ended::Well);
        for (rank, said) in [("2", "2 4 0 2 127.0.0.1:29500\n"), ("3", "3 4 1 2 127.0.0.1:29500\n")] {
            assert_eq!(std::fs::read_to_string(dir.path().join(rank)).unwrap(), said);
        }
    }

    #[test]
    fn the_first_failure_ends_the_others_and_is_named() {
        // Whoever is not ended sleeps longer than any test may take.
        let script = "if [ $RANK = 1 ]; then echo one >&2; echo the disk is full >&2; exit 7; else sleep 1000000; fi";
        let ended = run(&ranks(3), &shell(script)).unwrap();
        let why = "ended with exit code 7: the disk is full".to_owned();
        assert_eq!(ended, Ended::Badly { rank: 1, code: 7, why });
    }

    #[test]
    fn a_killed_rank_is_named_by_its_signal_and_a_stubborn_one_is_killed() {
        let script = "if [ $RANK = 0 ]; then kill -9 $$; else trap '' TERM; while :; do sleep 1; done; fi";
        let ended = run(&ranks(2), &shell(script)).unwrap();
        assert_eq!(ended, Ended::Badly { rank: 0, code: 137, why: "was ended by SIGKILL".into() });
    }

    #[test]
    fn what_cannot_start_is_an_error() {
        let error = run(&ranks(2), &|| Command::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/at/all: "), "{error}");
        assert!(run(&Ranks { node_rank: 1, ..ranks(1) }, &shell("true")).is_err());
    }
}
