//! The suites: which cases are measured, and in what order.

use crate::harness::{self, Rounds, Settings, Timed};
use crate::host::Host;
use crate::peer::{Library, Peer, PeerCase};
use crate::policy::{EngineCalls, Inputs, Network, Place, agreement, read_answers};
use crate::table::{Case, LatencyRow, Pass, PeerRow};
use crate::train::TrainCalls;
use anyhow::{Context, Result};
use std::path::Path;

/// Latency by backbone, pass, batch and threads.
#[derive(Debug, Clone)]
pub struct LatencySuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// Batches of a streaming step.
    pub step_batches: Vec<usize>,
    /// Batches of a window pass.
    pub window_batches: Vec<usize>,
    /// Frames of a window.
    pub window: usize,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Where they compute.
    pub place: Place,
}

impl LatencySuite {
    /// The cases in the order of the table.
    pub fn cases(&self) -> Vec<(Network, Case)> {
        let mut cases = Vec::new();
        for network in &self.networks {
            for (pass, batches, frames) in [(Pass::Step, &self.step_batches, 1), (Pass::Window, &self.window_batches, self.window)] {
                for &threads in &self.threads {
                    let case = |&batch: &usize| (network.clone(), self.place.of(network.case(pass, batch, frames, threads)));
                    cases.extend(batches.iter().map(case));
                }
            }
        }
        cases
    }

    /// Measures every case; `seen` is called after each.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&LatencyRow)) -> Result<Vec<LatencyRow>> {
        let mut rows = Vec::new();
        for (network, case) in self.cases() {
            let calls = EngineCalls::new(network.load()?, &case, &Inputs::random(&case), &self.place)?;
            let measurement = harness::measure(&mut Timed(calls), settings).with_context(|| describe(&case))?;
            let row = LatencyRow { host: host.clone(), case, measurement, gpu_mb: self.place.gpu_mb() };
            seen(&row);
            rows.push(row);
        }
        Ok(rows)
    }
}

/// Comparisons with other libraries on the same weights and inputs.
#[derive(Debug, Clone)]
pub struct PeerSuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// Whom to compare with.
    pub libraries: Vec<Library>,
    /// What to compare.
    pub passes: Vec<Pass>,
    /// Batches of a streaming step.
    pub step_batches: Vec<usize>,
    /// Batches of a window pass.
    pub window_batches: Vec<usize>,
    /// Batch of a training step.
    pub train_batch: usize,
    /// Frames of a window or a training step.
    pub window: usize,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Where both sides compute.
    pub place: Place,
}

impl PeerSuite {
    /// The cases in the order of the table. ONNX Runtime does not train.
    pub fn cases(&self) -> Vec<(Network, Case, Library)> {
        let mut cases = Vec::new();
        for network in &self.networks {
            for &pass in &self.passes {
                let (batches, frames) = match pass {
                    Pass::Step => (self.step_batches.clone(), 1),
                    Pass::Window => (self.window_batches.clone(), self.window),
                    Pass::Train => (vec![self.train_batch], self.window),
                    // Not a pass of a network.
                    Pass::Product => continue,
                };
                for &library in self.libraries.iter().filter(|&&l| pass != Pass::Train || (l == Library::Pytorch && network.dtype == "f32"))
                {
                    for &threads in &self.threads {
                        let case = |&batch: &usize| (network.clone(), self.place.of(network.case(pass, batch, frames, threads)), library);
                        cases.extend(batches.iter().map(case));
                    }
                }
            }
        }
        cases
    }

    /// Compares every case; `seen` is called after each. Where the outputs disagree, nothing is timed.
    pub fn run(&self, peer: &mut Peer, settings: &Settings, host: &Host, mut seen: impl FnMut(&PeerRow)) -> Result<Vec<PeerRow>> {
        let scratch = tempfile::tempdir().context("no directory for the inputs of the peer")?;
        let mut rows = Vec::new();
        for (network, case, library) in self.cases() {
            let row = compare(&network, case, library, peer, &Bench { settings, host, scratch: scratch.path(), place: &self.place })?;
            seen(&row);
            rows.push(row);
        }
        Ok(rows)
    }
}

/// What every comparison shares.
struct Bench<'a> {
    settings: &'a Settings,
    host: &'a Host,
    scratch: &'a Path,
    place: &'a Place,
}

fn compare(network: &Network, case: Case, library: Library, peer: &mut Peer, bench: &Bench) -> Result<PeerRow> {
    let inputs = Inputs::random(&case);
    let theirs = PeerCase {
        library,
        device: case.device.clone(),
        dtype: if case.device == "cpu" { "f32".to_owned() } else { case.dtype.clone() },
        bundle: std::path::absolute(&network.original)?,
        pass: case.pass,
        batch: case.batch,
        frames: case.frames,
        threads: case.threads,
        inputs: bench.scratch.join("inputs.safetensors"),
        outputs: bench.scratch.join("outputs.safetensors"),
    };
    inputs.tensors()?.save_safetensors(&theirs.inputs)?;
    peer.prepare(&theirs).with_context(|| describe(&case))?;
    let theirs = read_answers(&theirs.outputs)?;
    let (mut ours, answers): (Box<dyn Rounds>, _) = match case.pass {
        Pass::Train => {
            let mut calls = TrainCalls::new(network, &case, &inputs)?;
            let answers = calls.answers()?;
            (Box::new(Timed(calls)), answers)
        }
        Pass::Step | Pass::Window | Pass::Product => {
            let mut calls = EngineCalls::new(network.load()?, &case, &inputs, bench.place)?;
            let answers = calls.answers()?;
            (Box::new(Timed(calls)), answers)
        }
    };
    let agreement = agreement(&answers, &theirs, &network.dtype).with_context(|| describe(&case))?;
    let comparison = match agreement.holds() {
        true => Some(harness::compare(ours.as_mut(), peer, bench.settings).with_context(|| describe(&case))?),
        false => None,
    };
    Ok(PeerRow { host: bench.host.clone(), peer: peer.versions().of(library), case, agreement, comparison })
}

fn describe(case: &Case) -> String {
    format!("{}, {}, batch {}, {} threads", case.model, case.pass_name(), case.batch, case.threads)
}
