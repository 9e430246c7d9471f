//! What the clients of a server notice while something else goes on there: the model is loaded anew, others are slow, or send what unpacks
//! to too much; and what loading leaves behind.

use super::client::{Client, post};
use super::{MODEL, ServeSuite};
use crate::host;
use crate::stats::{Summary, median, sorted};
use crate::target::{Limit, TargetRow};
use anyhow::{Context, Result};
use candle_serve::Address;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Windows without and with what goes on, in turn.
const TURNS: usize = 6;
/// Connections whose headers never end.
const SLOW: usize = 64;
/// Bytes that a bomb unpacks to, of zeros: four times what a server takes.
const BOMB: usize = 64 << 20;
/// Between two bombs, and two bytes of slow headers.
const PAUSE: Duration = Duration::from_millis(100);
/// Cycles before memory is read for the first time.
const SETTLED: usize = 20;

/// What goes on beside the clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Idle,
    SlowHeaders,
    Bombs,
    Loads,
}

impl Trouble {
    fn text(self, idle: usize) -> String {
        match self {
            Self::Idle => format!("{idle} idle connections"),
            Self::SlowHeaders => format!("{SLOW} connections whose headers never end"),
            Self::Bombs => format!("ten bodies a second that unpack to {} MiB", BOMB >> 20),
            Self::Loads => "the model loaded anew all the time".to_owned(),
        }
    }

    /// Of the time that the slowest requests take without it.
    fn limit(self) -> Limit {
        Limit::AtMost(if self == Self::Loads { 2.0 } else { 1.5 })
    }

    /// Goes on until it is over; counts what was done.
    fn go_on(self, tcp: &Address, idle: usize, ready: &AtomicBool, over: &AtomicBool) -> Result<u64> {
        let Address::Tcp(address) = tcp else { anyhow::bail!("expected an address of TCP") };
        let connect = || TcpStream::connect(address).context("another connection");
        let mut held: Vec<TcpStream> = match self {
            Self::Idle => (0..idle).map(|_| connect()).collect::<Result<_>>()?,
            Self::SlowHeaders => (0..SLOW).map(|_| connect()).collect::<Result<_>>()?,
            Self::Bombs | Self::Loads => Vec::new(),
        };
        let path = format!("/v2/models/{MODEL}/infer");
        let bomb = if self == Self::Bombs { post(&path, "Content-Encoding: gzip\r\n", &bomb()?) } else { Vec::new() };
        let mut load = Client::connect(tcp, post(&format!("/v2/repository/models/{MODEL}/load"), "", b""))?;
        let mut done = 0;
        ready.store(true, Relaxed);
        while !over.load(Relaxed) {
            match self {
                Self::Idle => std::thread::sleep(PAUSE),
                Self::SlowHeaders => {
                    for stream in &mut held {
                        // The server has had enough of it: another one comes.
                        if stream.write_all(b"x").is_err() {
                            *stream = connect()?;
                        }
                    }
                    std::thread::sleep(PAUSE);
                }
                Self::Bombs => {
                    // It is refused, and the connection closed.
                    let _ = Client::connect(tcp, bomb.clone())?.ask();
                    std::thread::sleep(PAUSE);
                }
                Self::Loads => drop(load.ask()?),
            }
            done += 1;
        }
        Ok(done)
    }
}

/// Zeros, packed.
fn bomb() -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..BOMB / zeros.len() {
        encoder.write_all(&zeros)?;
    }
    Ok(encoder.finish()?)
}

impl ServeSuite<'_> {
    /// What others notice of each trouble, and what loading leaves behind.
    pub(super) fn trouble(&self, one: &[u8], tcp: &Address) -> Result<Vec<TargetRow>> {
        let mut rows = Vec::new();
        for trouble in [Trouble::Idle, Trouble::SlowHeaders, Trouble::Bombs, Trouble::Loads] {
            rows.extend(self.beside(trouble, one, tcp)?);
        }
        rows.push(self.cycles(tcp)?);
        Ok(rows)
    }

    /// The slowest requests of one client, beside a trouble and without it.
    fn beside(&self, trouble: Trouble, one: &[u8], tcp: &Address) -> Result<Vec<TargetRow>> {
        let idle = self.arguments.idle;
        let (mut quiet, mut troubled, mut done) = (Vec::new(), Vec::new(), 0);
        let failed = AtomicU64::new(0);
        for _ in 0..TURNS {
            quiet.push(self.slowest(one, tcp, &failed)?);
            let (ready, over) = (AtomicBool::new(false), AtomicBool::new(false));
            let found = std::thread::scope(|scope| {
                let other = scope.spawn(|| trouble.go_on(tcp, idle, &ready, &over));
                while !ready.load(Relaxed) && !other.is_finished() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let found = self.slowest(one, tcp, &failed);
                over.store(true, Relaxed);
                done += other.join().map_err(|_| anyhow::anyhow!("the trouble panicked"))??;
                found
            })?;
            troubled.push(found);
        }
        let ratios: Vec<f64> = quiet.iter().zip(&troubled).map(|(quiet, troubled)| troubled / quiet).collect();
        let of = |times: &[f64]| median(&sorted(times));
        let evidence = format!("{:.1} us, without {:.1} us, {TURNS} turns", of(&troubled), of(&quiet));
        let what = format!("p99 of a request beside {}", trouble.text(idle));
        let mut rows = vec![self.row(&what, 1, (of(&ratios), trouble.limit(), "x"), evidence)];
        if trouble == Trouble::Loads {
            let figure = (failed.load(Relaxed) as f64, Limit::AtMost(0.0), "requests");
            rows.push(self.row("failed beside it", 1, figure, format!("{done} loads")));
        }
        Ok(rows)
    }

    /// The 99th percentile of one client's requests, in microseconds.
    fn slowest(&self, one: &[u8], tcp: &Address, failed: &AtomicU64) -> Result<f64> {
        let settings = &self.arguments.common.settings;
        settings.interrupt.check()?;
        let mut client = Client::connect(tcp, one.to_vec())?;
        let end = Instant::now() + Duration::from_secs_f64(settings.window_s.max(0.01) * 2.0);
        let mut times = Vec::new();
        while Instant::now() < end {
            let began = Instant::now();
            if client.ask().is_err() {
                failed.fetch_add(1, Relaxed);
                client = Client::connect(tcp, one.to_vec())?;
            }
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let summary = Summary::of(&times).context("no request was timed")?;
        Ok(summary.p99.unwrap_or(summary.max))
    }

    /// What the model leaves behind when it is loaded and unloaded again and again.
    fn cycles(&self, tcp: &Address) -> Result<TargetRow> {
        let of = |what: &str| Client::connect(tcp, post(&format!("/v2/repository/models/{MODEL}/{what}"), "", b""));
        let (mut load, mut unload) = (of("load")?, of("unload")?);
        let mut cycles = |count: usize| {
            (0..count).try_for_each(|_| {
                self.arguments.common.settings.interrupt.check()?;
                unload.ask()?;
                load.ask().map(drop)
            })
        };
        cycles(SETTLED.min(self.arguments.cycles))?;
        let before = resident_bytes()?;
        cycles(self.arguments.cycles)?;
        let after = resident_bytes()?;
        let mb = |bytes: f64| bytes / (1 << 20) as f64;
        let evidence = format!("{} cycles, from {:.1} to {:.1} MB of the whole process", self.arguments.cycles, mb(before), mb(after));
        Ok(self.row("left behind by loading and unloading", 1, (mb(after - before), Limit::AtMost(1.0), "MB"), evidence))
    }
}

/// What of this process lies in memory.
fn resident_bytes() -> Result<f64> {
    let pages = host::status_field(24).context("memory is read from /proc/self/stat, which does not tell it")?;
    Ok(pages as f64 * 4096.0)
}
