//! The rendezvous and the watch between real processes, as launchers start them: this test program starts itself as ranks.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod hosts;
mod lost;
mod strangers;

use candle_train::parallel::connect::limit;
use candle_train::parallel::environment::from_environment;
use candle_train::parallel::rendezvous::{Token, meet};
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// What a rank does after the rendezvous.
const SCRIPT: &str = "CANDLE_TEST_RANK";

/// What would take longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// A rank, where this program was started as one; else there is nothing to test.
#[test]
fn as_a_rank() {
    let Ok(script) = std::env::var(SCRIPT) else { return };
    let launched = from_environment().unwrap().unwrap();
    let configuration = std::env::var("CANDLE_TEST_CONFIGURATION").unwrap_or_default();
    let token: Token = std::array::from_fn(|i| i as u8 ^ 0x5a);
    println!("rank {} begins", launched.rank);
    let (watch, received) = match meet(&launched, &configuration, limit().unwrap(), || Ok(token)) {
        Ok(met) => met,
        Err(error) => end(2, &error.to_string()),
    };
    assert_eq!(received, token);
    println!("rank {} met {} others", launched.rank, launched.size - 1);
    match script.as_str() {
        "leave" => drop(watch),
        "leave together" => {
            // The others wait for the last, which is told when to go.
            if launched.rank == launched.size - 1 {
                let mut told = [0];
                std::io::stdin().read_exact(&mut told).unwrap();
                println!("rank {} goes", launched.rank);
            }
            watch.leave(PATIENCE);
            println!("rank {} is gone", launched.rank);
        }
        "abandon" if launched.rank == 1 => watch.abandon("the disk is full"),
        "panic" if launched.rank == 1 => panic!("a mistake"),
        "count" => {
            // Rank 1 makes fewer calls than the others, who learn that.
            (0..10 - 3 * (launched.rank % 2)).for_each(|_| watch.count());
            // What each has counted is told once a second.
            let start = std::time::Instant::now();
            while watch.slowest() != (1, 7) && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(20));
            }
            println!("slowest {:?}", watch.slowest());
            // Nobody goes before all know.
            watch.leave(PATIENCE);
        }
        _ => match watch.wait(PATIENCE) {
            Ok(()) => end(4, "nobody was lost"),
            Err(error) => end(3, &error.to_string()),
        },
    }
}

/// Ends the process with the watch as it is: as a program does that fails.
fn end(code: i32, why: &str) -> ! {
    eprintln!("error: {why}");
    std::process::exit(code)
}

/// Two free ports in a row; the first. Outside the range from which the system takes ports for connections and for listeners that ask for any,
/// and no two tests of this process get the same; where two of these programs run, each begins elsewhere.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = u16::try_from(std::process::id() % 5000).unwrap() * 2;
    loop {
        let first = 20_000 + (begin + NEXT.fetch_add(2, Ordering::Relaxed)) % 10_000;
        let free = |port: u16| TcpListener::bind(("0.0.0.0", port)).is_ok();
        if free(first) && free(first + 1) {
            return first;
        }
    }
}

/// The command for a rank with torchrun's variables.
fn command(rank: usize, size: usize, port: u16, script: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if ["SLURM_", "OMPI_", "PMI"].iter().any(|p| name.starts_with(p)) {
            command.env_remove(name);
        }
    }
    command.args(["--exact", "as_a_rank", "--nocapture"]).env(SCRIPT, script);
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string()).env("LOCAL_RANK", rank.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()).env("CANDLE_RANK_TIMEOUT", "300");
    command.stdin(Stdio::null());
    command
}

/// A process that dies with its test.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Rank {
    Rank(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

impl Rank {
    /// Exit code (or minus the signal), and all that it said.
    fn end(mut self) -> (i32, String) {
        use std::os::unix::process::ExitStatusExt;
        let mut said = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = self.0.wait().unwrap();
        (status.code().unwrap_or_else(|| -status.signal().unwrap()), said)
    }

    /// Waits until it has said so.
    fn says(&mut self, what: &str) {
        let mut said = Vec::new();
        let out = self.0.stdout.as_mut().unwrap();
        let mut byte = [0];
        while !String::from_utf8_lossy(&said).contains(what) {
            assert_eq!(out.read(&mut byte).unwrap(), 1, "ended after {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
    }

    /// Waits until it has said that it met the others.
    fn met(&mut self) {
        self.says(" others\n");
    }

    /// Waits until it has said that it begins to look for the others.
    fn looks(&mut self) {
        self.says(" begins\n");
    }

    fn signal(&self, name: &str) {
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.0.id())]).status().unwrap();
        assert!(status.success());
    }
}

#[test]
fn ranks_meet_in_any_order() {
    let port = port();
    let ranks: Vec<_> = [2, 1, 0]
        .into_iter()
        .map(|rank| {
            let mut rank = start(&mut command(rank, 3, port, "leave"));
            rank.looks();
            rank
        })
        .collect();
    for rank in ranks {
        let (code, said) = rank.end();
        assert!(code == 0 && said.contains("met 2 others") && !said.contains("warning"), "{said}");
    }
}

#[test]
fn torchrun_starts_ranks_that_meet() {
    let python = std::env::var_os("CANDLE_TORCHRUN").unwrap_or_else(|| "torchrun".into());
    if Command::new(&python).arg("--help").output().is_ok_and(|o| o.status.success()) {
        let port = port().to_string();
        let mut torchrun = Command::new(&python);
        torchrun.args(["--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", &port, "--no-python"]);
        torchrun.arg(std::env::current_exe().unwrap()).args(["--exact", "as_a_rank", "--nocapture"]);
        torchrun.env(SCRIPT, "leave").env("CANDLE_RANK_TIMEOUT", "60");
        let (code, said) = start(&mut torchrun).end();
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("rank 0 met 1 others") && said.contains("rank 1 met 1 others"), "{said}");
    } else {
        eprintln!("skipped: no torchrun in PATH, and none in CANDLE_TORCHRUN");
    }
}

#[test]
fn who_does_not_come_is_named_to_all_who_did() {
    let port = port();
    // Rank 2 is there already, and looks for rank 0 ten times a second, when rank 0 begins to wait.
    let mut rank_2 = start(&mut command(2, 4, port, "leave"));
    rank_2.looks();
    let rank_0 = start(command(0, 4, port, "leave").env("CANDLE_RANK_TIMEOUT", "8"));
    for rank in [rank_0, rank_2] {
        let (code, said) = rank.end();
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(&format!("ranks 1, 3 did not come to port {} of rank 0 within 8 s", port + 1)), "{said}");
    }
}

/// Both wait until ten seconds of silence are over: side by side.
#[test]
fn a_rank_that_is_silent_is_named() {
    std::thread::scope(|scope| {
        scope.spawn(hosts::ranks_on_two_hosts_meet_and_notice_when_the_cable_is_cut);
        lost::a_rank_that_is_stopped_is_named();
    });
}

#[test]
fn a_rank_without_rank_0_says_where_it_looked() {
    let port = port();
    let (code, said) = start(command(1, 2, port, "leave").env("CANDLE_RANK_TIMEOUT", "1")).end();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains(&format!("rank 1 did not reach rank 0 at 127.0.0.1:{} within 1 s: Connection refused", port + 1)), "{said}");
}
