//! The Rust side of `candle-bench peers`: one JSON request per line on stdin, one JSON answer per line on stdout, in the protocol of
//! `candle-bench/peers/peer.py`, for `tract`, `candle` and `burn`: streaming steps on the CPU, in f32.
//!
//! The libraries read the number of their threads once, from the environment: for a case with another number the process starts itself
//! anew, in its own place, with the request as its argument.

mod burn_library;
mod candle_library;
mod layout;
mod policy;
mod protocol;
mod threads;
mod tract_step;

use anyhow::{Context, Result, bail};
use protocol::{Case, Reply, Request, Unavailable};
use std::io::{BufRead, Write};
use std::time::Instant;

/// Calls of a round that are not counted: the other side had the caches.
const WARM_UP_CALLS: usize = 3;

/// A streaming step: a call takes the next frame, round and round, and carries the state on.
pub trait Step {
    /// How many frames there are.
    fn frames(&self) -> usize;

    /// One call.
    fn call(&mut self) -> Result<()>;

    /// The outputs of the last call by name, `[B, width]`.
    fn outputs(&self) -> Result<Vec<(String, layout::Values)>>;
}

/// What is measured from now on.
struct Prepared {
    step: Box<dyn Step>,
    threads: usize,
    library: String,
}

fn prepare(case: &Case) -> Result<Prepared> {
    if case.device != "cpu" || case.pass != "step" {
        return Err(Unavailable(format!("{} has no {} pass on {} here", case.library, case.pass, case.device)).into());
    }
    let mut step: Box<dyn Step> = match case.library.as_str() {
        "tract" => Box::new(tract_step::Tract::new(case)?),
        "candle" => Box::new(policy::Streaming::new(candle_library::Candle { batch: case.batch }, case)?),
        "burn" => Box::new(policy::Streaming::new(burn_library::Burn::default(), case)?),
        other => bail!("no such library: {other}"),
    };
    let mut seen = Vec::new();
    for _ in 0..step.frames() {
        step.call()?;
        seen.push(step.outputs()?);
    }
    layout::write(&case.outputs, case.batch, &seen)?;
    Ok(Prepared { step, threads: case.threads, library: case.library.clone() })
}

/// Latencies of `calls` calls in microseconds, and the seconds of them all.
fn round(prepared: &mut Prepared, calls: usize) -> Result<serde_json::Value> {
    for _ in 0..WARM_UP_CALLS.min(calls.saturating_sub(1)) {
        prepared.step.call()?;
    }
    let mut latencies = Vec::with_capacity(calls);
    let before = threads::seconds();
    let start = Instant::now();
    let mut last = start;
    for _ in 0..calls {
        prepared.step.call()?;
        let now = Instant::now();
        latencies.push((now - last).as_secs_f64() * 1e6);
        last = now;
    }
    threads::check(&prepared.library, prepared.threads, &before, &threads::seconds())?;
    Ok(serde_json::json!({ "latencies_us": latencies, "seconds": (last - start).as_secs_f64() }))
}

fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("/proc/self/status has no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

fn answer(line: &str, prepared: &mut Option<Prepared>) -> Result<serde_json::Value> {
    Ok(match serde_json::from_str(line)? {
        Request::Hello => serde_json::json!(protocol::versions()),
        Request::Prepare(case) => {
            // The old one's memory goes first.
            *prepared = None;
            threads::limit(case.threads, line)?;
            *prepared = Some(prepare(&case)?);
            serde_json::json!({})
        }
        Request::Round { calls } => round(prepared.as_mut().context("a round needs a prepared subject")?, calls)?,
        Request::Peak => peak()?.into(),
    })
}

fn main() -> Result<()> {
    let (mut prepared, mut line) = (None, std::env::args().nth(1).unwrap_or_default());
    loop {
        if line.is_empty() && std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = Reply::of(answer(&line, &mut prepared));
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&reply)?)?;
        out.flush()?;
        line.clear();
    }
}
