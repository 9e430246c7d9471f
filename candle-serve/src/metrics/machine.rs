//! What the process and the machine around it are at, as Linux tells it in `/proc`; elsewhere there is nothing to tell.

use std::fs;
use std::sync::{Mutex, PoisonError};

/// Ticks of `/proc` in a second: the same on every Linux, whatever its kernel counts in.
const TICKS: f64 = 100.0;

/// Looks at the machine now and then.
#[derive(Debug, Default)]
pub(crate) struct Machine(Mutex<Processors>);

/// Time of all processors together since the machine's start, in ticks.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Processors {
    all: u64,
    idle: u64,
}

/// A metric without labels: name, kind, explanation and value.
pub(super) type Metric = (&'static str, &'static str, &'static str, f64);

impl Machine {
    /// The metrics that can be had here. The load is that since the last call, or since the machine's start.
    pub fn read(&self) -> Vec<Metric> {
        let file = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let (memory, status, times) = (file("meminfo"), file("self/status"), file("self/stat"));
        let total = bytes(&memory, "MemTotal:");
        let used = total.zip(bytes(&memory, "MemAvailable:")).map(|(total, free)| total - free);
        let process = Process::parse(&times).zip(started(&file("stat")));
        let metrics = [
            (
                "nv_cpu_utilization",
                "gauge",
                "Share of the machine's processors that was busy since it was last asked for",
                self.load(&file("stat")),
            ),
            ("nv_cpu_memory_total_bytes", "gauge", "Memory of the machine, bytes", total),
            ("nv_cpu_memory_used_bytes", "gauge", "Memory of the machine that is not available, bytes", used),
            ("process_resident_memory_bytes", "gauge", "Memory of the server, bytes", bytes(&status, "VmRSS:")),
            (
                "process_cpu_seconds_total",
                "counter",
                "Time of processors that the server has taken, seconds",
                process.map(|(own, _)| own.time),
            ),
            (
                "process_start_time_seconds",
                "gauge",
                "When the server was started, seconds since 1970",
                process.map(|(own, machine)| machine + own.start),
            ),
        ];
        metrics.into_iter().filter_map(|(name, kind, help, value)| Some((name, kind, help, value?))).collect()
    }

    fn load(&self, stat: &str) -> Option<f64> {
        let now = Processors::parse(stat)?;
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let load = now.load_since(*last);
        *last = now;
        Some(load)
    }
}

impl Processors {
    /// The first line of `/proc/stat`: user, nice, system, idle, waiting for a disk, interrupts, soft interrupts, stolen. What stands behind
    /// is a part of user.
    fn parse(stat: &str) -> Option<Self> {
        let mut words = stat.lines().next()?.split_whitespace();
        (words.next()? == "cpu").then_some(())?;
        let times: Vec<u64> = words.take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let idle = times.get(3)? + times.get(4).unwrap_or(&0);
        Some(Self { all: times.iter().sum(), idle })
    }

    fn load_since(self, last: Self) -> f64 {
        let (all, idle) = (self.all.saturating_sub(last.all), self.idle.saturating_sub(last.idle));
        if all == 0 { 0.0 } else { 1.0 - idle.min(all) as f64 / all as f64 }
    }
}

/// Times of a process, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Process {
    /// On processors.
    time: f64,
    /// From the machine's start to its own.
    start: f64,
}

impl Process {
    /// From `/proc/self/stat`, where a name in parentheses comes first that may have spaces.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        // Counted from the third one of the file.
        let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok().map(|ticks| ticks as f64 / TICKS);
        Some(Self { time: ticks(11)? + ticks(12)?, start: ticks(19)? })
    }
}

/// When the machine was started, in seconds since 1970.
fn started(stat: &str) -> Option<f64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// A number of kilobytes in one of `/proc`'s tables.
fn bytes(table: &str, name: &str) -> Option<f64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_linux_are_read() {
        let stat = "cpu  100 10 50 800 40 0 5 0 7 0\ncpu0 1 1 1 1\nbtime 1700000000\n";
        let first = Processors::parse(stat);
        assert_eq!((first, started(stat)), (Some(Processors { all: 1005, idle: 840 }), Some(1_700_000_000.0)));
        let later = Processors { all: 1105, idle: 915 };
        assert_eq!(first.map(|first| (later.load_since(first), first.load_since(first))), Some((0.25, 0.0)));
        let own = "42 (a name) (x) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 12345 1 1";
        assert_eq!(Process::parse(own), Some(Process { time: 2.0, start: 123.45 }));
        assert_eq!(bytes("MemFree: 1 kB\nMemTotal:   2048 kB\n", "MemTotal:"), Some(2_097_152.0));
        for text in ["", "cpu", "intr 1 2 3", "cpu one two"] {
            assert_eq!(
                (Processors::parse(text), Process::parse(text), started(text), bytes(text, "x")),
                (None, None, None, None),
                "{text}"
            );
        }
    }
}
