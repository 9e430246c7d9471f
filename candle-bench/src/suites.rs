//! The suites: which cases are measured, and in what order.

use crate::calls::{Inputs, agreement, calls, read_answers};
use crate::case::{Case, Execution, Pass};
use crate::harness::{self, Rounds, Settings, Timed};
use crate::host::Host;
use crate::network::{Network, Place};
use crate::peer::{Library, Peer, PeerCase, Unavailable};
use crate::table::{LatencyRow, PeerRow};
use crate::train::TrainCalls;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::collections::BTreeMap;
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
    /// How passes are run.
    pub executions: Vec<Execution>,
    /// Where they compute.
    pub place: Place,
}

impl LatencySuite {
    /// The cases in the order of the table. On tensors of the CPU all weights are f32: eager passes are those of networks in f32.
    pub fn cases(&self) -> Vec<(Network, Case)> {
        let mut cases = Vec::new();
        for network in &self.networks {
            let possible =
                |execution: &&Execution| **execution == Execution::Captured || self.place.device.is_cuda() || network.dtype == "f32";
            for &execution in self.executions.iter().filter(possible) {
                for (pass, batches, frames) in [(Pass::Step, &self.step_batches, 1), (Pass::Window, &self.window_batches, self.window)] {
                    for &threads in &self.threads {
                        let case = |&batch: &usize| Case { execution, ..self.place.of(network.case(pass, batch, frames, threads)) };
                        cases.extend(batches.iter().map(|batch| (network.clone(), case(batch))));
                    }
                }
            }
        }
        cases
    }

    /// Measures every case; `seen` is called after each.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&LatencyRow)) -> Result<Vec<LatencyRow>> {
        let mut rows = Vec::new();
        for (network, case) in self.cases() {
            let model = network.load()?;
            let inputs = Inputs::random(&*model, &case);
            let mut calls = calls(model, &case, &inputs, &self.place)?;
            let measurement = harness::measure(&mut *calls, settings).with_context(|| describe(&case))?;
            let (bytes, gpu_mb) = (calls.bytes(), self.place.gpu_mb());
            let row = LatencyRow { host: host.clone(), case, measurement, bytes, gpu_mb };
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
    /// The cases in the order of the table. Training is beside eager PyTorch and JAX: ONNX Runtime does not train, and torch.compile unrolls
    /// the scan's loop over the frames, which takes it minutes to compile backwards.
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
                let trains = |library| network.dtype == "f32" && matches!(library, Library::Pytorch | Library::Jax);
                for &library in self.libraries.iter().filter(|&&library| pass != Pass::Train || trains(library)) {
                    for &threads in &self.threads {
                        let case = |&batch: &usize| (network.clone(), self.place.of(network.case(pass, batch, frames, threads)), library);
                        cases.extend(batches.iter().map(case));
                    }
                }
            }
        }
        cases
    }

    /// Compares every case; `seen` is called after each. Where the outputs disagree, nothing is timed; what the peer does not have is left out.
    pub fn run(&self, peer: &mut Peer, settings: &Settings, host: &Host, mut seen: impl FnMut(&PeerRow)) -> Result<PeerRun> {
        let scratch = tempfile::tempdir().context("no directory for the inputs of the peer")?;
        let mut run = PeerRun::default();
        for (network, case, library) in self.cases() {
            let row = match compare(&network, case, library, peer, &Bench { settings, host, scratch: scratch.path(), place: &self.place }) {
                Ok(row) => row,
                Err(error) => {
                    run.leave_out(library, error.downcast()?);
                    continue;
                }
            };
            seen(&row);
            run.rows.push(row);
        }
        Ok(run)
    }
}

/// What a comparison with peers gave.
#[derive(Debug, Default)]
pub struct PeerRun {
    /// The cases that were compared.
    pub rows: Vec<PeerRow>,
    /// How many cases of a library, by its name, were left out for a reason.
    left_out: BTreeMap<(String, String), usize>,
}

impl PeerRun {
    fn leave_out(&mut self, library: Library, why: Unavailable) {
        let name = library.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        *self.left_out.entry((name, why.reason)).or_default() += 1;
    }

    /// A line for every library and reason, `jax: 8 cases left out: ...`.
    pub fn left_out(&self) -> impl Iterator<Item = String> {
        let cases = |&n: &usize| if n == 1 { "1 case".to_owned() } else { format!("{n} cases") };
        self.left_out.iter().map(move |((library, reason), n)| format!("{library}: {} left out: {reason}", cases(n)))
    }

    /// The rows where none may be missing.
    pub fn whole(self) -> Result<Vec<PeerRow>> {
        let missing = self.left_out().next();
        missing.map_or(Ok(self.rows), |line| bail!("{line}"))
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
    let inputs = Inputs::random(&*network.load()?, &case);
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
            let mut calls = calls(network.load()?, &case, &inputs, bench.place)?;
            let answers = calls.answers()?;
            (calls, answers)
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Tensor};
    use candle_models::policy::Heads;
    use candle_models::tensors::NamedTensors;

    /// A peer that gives these answers for every library but JAX, which it does not have.
    fn peer_without_jax(answers: &Path, script: &Path) -> Peer {
        let program = format!(
            r#"read -r line; echo '{{"ok":{{"pytorch":"2.11.0","onnxruntime":"1.25.1","jax":null}}}}'
while read -r line; do case "$line" in
  *'"library":"jax"'*) echo '{{"unavailable":"no package jax"}}';;
  *'"op":"prepare"'*) cp '{}' "$(expr "$line" : '.*"outputs":"\([^"]*\)"')"; echo '{{"ok":{{}}}}';;
  *) calls=$(expr "$line" : '.*"calls":\([0-9]*\)')
     echo "{{\"ok\":{{\"latencies_us\":[$(seq -s, 1 "$calls" | sed 's/[0-9][0-9]*/5.0/g')],\"seconds\":0.001}}}}";;
esac; done"#,
            answers.display()
        );
        std::fs::write(script, program).unwrap();
        Peer::start(Path::new("sh"), script).unwrap()
    }

    #[test]
    fn cases_of_a_missing_library_are_left_out_and_the_others_go_on() {
        let scratch = tempfile::tempdir().unwrap();
        let network = Network::random("mlp", Heads::Independent, scratch.path()).unwrap();
        let case = network.case(Pass::Step, 1, 1, 1);
        let model = network.load().unwrap();
        let inputs = Inputs::random(&*model, &case);
        let found = calls(model, &case, &inputs, &Place::cpu()).unwrap().answers().unwrap();
        let tensor = |values: &Vec<f64>| Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        let answers: NamedTensors = found.iter().map(|(name, values)| (name.clone(), tensor(values))).collect();
        let file = scratch.path().join("answers.safetensors");
        answers.save_safetensors(&file).unwrap();

        let suite = PeerSuite {
            networks: vec![network],
            libraries: vec![Library::Jax, Library::Pytorch],
            passes: vec![Pass::Step],
            step_batches: vec![1],
            window_batches: vec![1],
            train_batch: 1,
            window: 2,
            threads: vec![1],
            place: Place::cpu(),
        };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, rounds: 4, ..Settings::default() };
        let mut peer = peer_without_jax(&file, &scratch.path().join("peer.sh"));
        let run = suite.run(&mut peer, &settings, &Host::detect(None), |_| {}).unwrap();
        assert_eq!(run.rows.len(), 1);
        assert_eq!((run.rows[0].peer.as_str(), run.rows[0].comparison.as_ref().unwrap().theirs_us.p50), ("pytorch 2.11.0", 5.0));
        let expected = "jax: 1 case left out: no package jax";
        assert_eq!(run.left_out().collect::<Vec<_>>(), [expected]);
        assert_eq!(run.whole().unwrap_err().to_string(), expected);
    }
}
