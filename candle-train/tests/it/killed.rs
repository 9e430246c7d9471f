//! SIGKILL between any two system calls of a save. The process that saves is traced, stopped at a system call and killed there: the
//! code under test is the one that ships, and every place where it touches the disk is reached.

use candle_core::{Device, Tensor};
use candle_train::checkpoint::{Checkpoint, Retention, Store, Writer};
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Tells the traced process what to do and where.
const SCENE: &str = "CANDLE_TRAIN_KILLED_SCENE";
const DIRECTORY: &str = "CANDLE_TRAIN_KILLED_DIRECTORY";

fn checkpoint(step: u64) -> Checkpoint {
    let tensor = Tensor::full(step as f32, 20_000, &Device::Cpu).unwrap();
    let group = |name: &str| (name.to_owned(), [("w".to_owned(), tensor.clone())].into_iter().collect());
    Checkpoint { step, tensors: [group("parameters"), group("moments")].into(), state: step.into(), ..Checkpoint::default() }
}

fn store(directory: &Path) -> Store {
    Store::open(directory, Retention { last: 1, best: 1, every: 0 }).unwrap()
}

/// What is there before the process that is killed starts.
fn prepare(scene: &str, directory: &Path) {
    let store = store(directory);
    store.save(&checkpoint(1)).unwrap();
    store.set_score(1, 5.0).unwrap();
    if scene == "replace" {
        fs::write(store.save(&checkpoint(2)).unwrap().join("moments.safetensors"), "damaged").unwrap();
    }
}

/// Run by the tests below in a process of its own.
#[test]
#[ignore = "deep: nothing of its own; it is the process that the other tests of this module kill"]
fn the_process_that_is_killed() {
    let (Ok(scene), Some(directory)) = (std::env::var(SCENE), std::env::var_os(DIRECTORY)) else { return };
    // What another test has started meanwhile has the lock of this test's process, too, until it runs a program of its own.
    fs::File::open(&directory).and_then(|directory| directory.lock()).unwrap();
    let mut writer = Writer::new(store(directory.as_ref())).unwrap();
    assert!(writer.store().latest().unwrap().0.is_some());
    // SAFETY: a call without memory. The signal tells the tracer that what matters begins; it does not deliver it.
    unsafe { libc::raise(libc::SIGUSR1) };
    writer.save(checkpoint(2)).unwrap();
    writer.set_score(2, 1.0).unwrap();
    if scene == "advance" {
        writer.save(checkpoint(3)).unwrap();
    }
    writer.finish().unwrap();
}

/// Runs the process until its system calls have stopped `stops` times, and kills it there. Whether it came that far; nothing where this system
/// lets no process trace its child.
fn kill_after(stops: usize, scene: &str, directory: &Path) -> Option<bool> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::the_process_that_is_killed", "--ignored", "--test-threads=1"]);
    let mut said = tempfile::tempfile().unwrap();
    let output = || Stdio::from(said.try_clone().unwrap());
    command.env(SCENE, scene).env(DIRECTORY, directory).stdout(output()).stderr(output());
    // SAFETY: a call without memory.
    let trace_me = || match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: one system call between fork and exec.
    unsafe { command.pre_exec(trace_me) };
    let child = match command.spawn() {
        Ok(child) => child.id() as i32,
        Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS)) => return None,
        Err(error) => panic!("the process to be killed cannot be started: {error}"),
    };

    let (mut status, mut counting, mut seen, mut end) = (0, false, 0, None);
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    loop {
        // SAFETY: `status` outlives the call. Children of this thread alone: other tests have processes too.
        let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread < 0 {
            break; // All its threads are gone.
        }
        if !libc::WIFSTOPPED(status) {
            if thread == child {
                end = Some(status);
            }
            continue;
        }
        let mut deliver = 0;
        match libc::WSTOPSIG(status) {
            signal if signal == libc::SIGTRAP | 0x80 => seen += usize::from(counting),
            libc::SIGUSR1 => counting = true,
            // The stop behind exec, that of a new thread, the news of a new thread.
            libc::SIGTRAP | libc::SIGSTOP => {}
            other => deliver = other,
        }
        if seen >= stops {
            // SAFETY: a call without memory; `child` has not been waited for to its end, so that the number is still its own.
            unsafe { libc::kill(child, libc::SIGKILL) };
            seen = 0;
            continue;
        }
        // SAFETY: calls on a stopped thread that this thread traces. Options again do no harm.
        unsafe {
            libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0, options);
            libc::ptrace(libc::PTRACE_SYSCALL, thread, 0, deliver);
        }
    }
    match end {
        Some(status) if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 && counting => Some(false),
        Some(status) if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL => Some(true),
        other => {
            let mut text = String::new();
            said.rewind().and_then(|()| said.read_to_string(&mut text)).unwrap();
            panic!("the traced process neither saved nor was killed: wait status {other:?}, saving: {counting}; it said: {text}");
        }
    }
}

/// What must hold whenever the process died.
fn check(scene: &str, directory: &Path, stops: usize) {
    let context = format!("{scene}, killed at stop {stops}");
    let pointer = fs::read_to_string(directory.join("latest")).ok();
    let store = store(directory);
    let (found, damaged) = store.latest().unwrap();
    let found = found.unwrap_or_else(|| panic!("{context}: nothing to resume from"));
    assert_eq!(found.state, found.step, "{context}");
    let w = found.group("moments").unwrap().get("w").unwrap().to_vec1::<f32>().unwrap();
    assert!(w.iter().all(|&x| x == found.step as f32) && w.len() == 20_000, "{context}");
    match (scene, pointer.as_deref()) {
        // Only where a damaged checkpoint is replaced and none older is there may the pointer be missing; here there is one.
        (_, None) => panic!("{context}: no pointer"),
        ("replace", Some("step-000000000002")) if !damaged.is_empty() => {} // As it was found.
        (_, Some(name)) => {
            assert!(damaged.is_empty() || scene == "replace", "{context}: {damaged:?}");
            let step: u64 = name.strip_prefix("step-").unwrap().parse().unwrap();
            assert!(step <= found.step && directory.join(name).join("manifest.json").exists(), "{context}: latest is {name}");
        }
    }
    store.save(&checkpoint(9)).unwrap();
    assert_eq!(store.latest().unwrap().0.unwrap().step, 9, "{context}");
    // The pointer, the newest and the best: nothing that was half written or half removed.
    let names: Vec<_> = fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.len() <= 3 && names.iter().all(|name| !name.starts_with('.')), "{context}: {names:?}");
}

fn killed_at_every(stride: usize) {
    for scene in ["advance", "replace"] {
        let mut stops = 1;
        loop {
            let dir = tempfile::tempdir().unwrap();
            prepare(scene, dir.path());
            match kill_after(stops, scene, dir.path()) {
                Some(true) => {}
                Some(false) => break,
                None => {
                    eprintln!("skipped: this system does not let a process trace its child with ptrace");
                    return;
                }
            }
            check(scene, dir.path(), stops);
            stops += stride;
        }
        eprintln!("{scene}: killed at {} of {stops} stops", stops / stride);
        assert!(stops > 50, "{scene}: only {stops} stops: nothing was traced");
    }
}

#[test]
fn killed_in_mid_save_the_older_or_the_newer_checkpoint_is_whole() {
    killed_at_every(23);
}

#[test]
#[ignore = "deep: every stop, where the test above takes each 23rd"]
fn killed_at_every_system_call_the_older_or_the_newer_checkpoint_is_whole() {
    killed_at_every(1);
}
