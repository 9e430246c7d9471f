//! Ours beside other libraries on the same weights and inputs, in interleaved rounds.

use crate::calls::{Agreement, Inputs, agreement, calls, read_answers};
use crate::case::{Case, Pass};
use crate::figure::Figure;
use crate::harness::{self, Comparison, Rounds, Settings, Timed};
use crate::host::Host;
use crate::network::{FEW, Network, Place};
use crate::peer::{Library, PeerCase, Processes, Unavailable};
use crate::report::charts::{self, Across, Panel, Sample, lines, network, present};
use crate::suite::{Common, DeviceArgument, Programs, Suite, SuiteRun};
use crate::table::{Record, Shown, compared_sides, micros, optional, rounds_in_turn};
use crate::target::{Judged, Sides};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result, bail};
use candle_models::bundle::Bundle;
use candle_models::exec::graph::Tables;
use candle_models::infer::onnx_model;
use candle_models::registry::Registry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Ratios to other libraries on the same weights and inputs, in interleaved rounds.
#[derive(clap::Args)]
pub struct Peers {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Whom to compare with.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "onnxruntime,openvino,tract,candle,burn,pytorch,jax")]
    libraries: Vec<Library>,
    /// What to compare.
    #[arg(long, value_name = "PASS", value_delimiter = ',', default_value = "step,window,train")]
    passes: Vec<Pass>,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32, 256])]
    batches: Vec<usize>,
    /// Batches of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1])]
    window_batches: Vec<usize>,
    /// Batch of a training step.
    #[arg(long, value_name = "B", default_value_t = 32)]
    train_batch: usize,
    #[command(flatten)]
    programs: Programs,
}

impl Suite for Peers {
    const NAME: &'static str = "peers";
    const TITLE: &'static str = "Beside other libraries";
    type Row = PeerRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<PeerRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.batches, &self.window_batches, &[self.train_batch]])?;
        let suite = PeerSuite {
            // The peer has these two.
            networks: bench.networks(common, FEW)?,
            libraries: self.libraries.clone(),
            passes: self.passes.clone(),
            step_batches: self.batches.clone(),
            window_batches: self.window_batches.clone(),
            train_batch: self.train_batch,
            window: common.window,
            threads: common.threads.clone(),
            place: self.device.open()?,
        };
        let mut peers = self.programs.processes();
        let count = suite.cases().len();
        bench.begin(&common.settings.describe_comparison(), Some(count));
        let run = suite.run(&mut peers, &common.settings, &bench.host.clone(), |row| bench.add(row))?;
        let disagreeing = bench.rows().iter().filter(|row| !row.agreement.holds()).count();
        if disagreeing > 0 {
            bench.refuse(format!("outputs disagree in {disagreeing} of {count} cases"));
        }
        run.left_out().for_each(|line| bench.refuse(line));
        Ok(())
    }
}

/// One comparison with a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// Whom with, `onnxruntime 1.25.1`.
    pub peer: String,
    /// How far the outputs are apart.
    pub agreement: Agreement,
    /// How long; nothing when the outputs disagree, for then the two did not do the same work.
    pub comparison: Option<Comparison>,
}

impl Record for PeerRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Pass", Everywhere),
        ("Batch", Everywhere),
        ("Threads", Everywhere),
        ("Peer", Everywhere),
        ("Worst difference", Everywhere),
        ("Tolerance", Csv),
        ("Our p50 latency", Everywhere),
        ("Their p50 latency", Everywhere),
        ("Our p99 latency", Everywhere),
        ("Their p99 latency", Everywhere),
        ("Ratio", Everywhere),
        ("Ratio low", Csv),
        ("Ratio high", Csv),
        ("95% of the ratio", Everywhere),
        ("Smallest ratio", Csv),
        ("Largest ratio", Csv),
        ("Rounds", Everywhere),
        ("Our requests", Csv),
        ("Their requests", Csv),
        ("Device", Csv),
        ("Dtype", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Pass", "Batch", "Threads", "Peer", "Device", "Dtype"];

    fn cells(&self) -> Vec<String> {
        let case = &self.case;
        let mut cells = vec![
            case.model.clone(),
            case.backbone.clone(),
            case.pass_name(),
            case.batch.to_string(),
            case.threads.to_string(),
            self.peer.clone(),
            self.agreement.difference(),
            format!("{:.1e}", self.agreement.tolerance),
        ];
        match &self.comparison {
            Some(c) => cells.extend([
                micros(c.ours_us.p50),
                micros(c.theirs_us.p50),
                optional(c.ours_us.p99),
                optional(c.theirs_us.p99),
                format!("{:.2}", c.ratio),
                format!("{:.2}", c.ratio_ci.low),
                format!("{:.2}", c.ratio_ci.high),
                format!("{:.2} to {:.2}", c.ratio_ci.low, c.ratio_ci.high),
                format!("{:.2}", c.ratio_range.low),
                format!("{:.2}", c.ratio_range.high),
                c.rounds.to_string(),
                c.ours_us.n.to_string(),
                c.theirs_us.n.to_string(),
            ]),
            None => {
                cells.extend(std::iter::repeat_n(String::new(), 4));
                cells.push(format!("outputs disagree ({})", self.agreement.output));
                cells.extend(std::iter::repeat_n(String::new(), 8));
            }
        }
        cells.extend([case.device.clone(), case.dtype.clone()]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        compared_sides(self.comparison.as_ref(), "our mean latency", "their time over ours")
    }

    fn told(&self) -> Option<String> {
        let Case { backbone, batch, threads, .. } = &self.case;
        let found = match &self.comparison {
            Some(c) => format!(
                "ours {:.1} us, theirs {:.1} us, ratio {:.2} ({:.2} to {:.2})",
                c.ours_us.p50, c.theirs_us.p50, c.ratio, c.ratio_ci.low, c.ratio_ci.high
            ),
            None => format!("outputs disagree: {}", self.agreement),
        };
        Some(format!("{backbone} {} batch {batch} threads {threads} | {} | {found}", self.case.pass_name(), self.peer))
    }

    fn often(&self) -> String {
        rounds_in_turn(self.comparison.as_ref())
    }

    fn pass(&self) -> Option<&Case> {
        Some(&self.case)
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let samples = rows.iter().flat_map(|row| {
            let sides = row.comparison.iter().flat_map(|c| [("ours", c.ours_us.p50), (row.peer.as_str(), c.theirs_us.p50)]);
            let sample = |(side, us): (&str, f64)| Sample {
                chart: format!("{}, {}, beside {}", network(&row.case), charts::calls(&row.case), row.peer),
                series: side.to_owned(),
                point: (row.case.batch as f64, us),
            };
            sides.map(sample).collect::<Vec<_>>()
        });
        let charts = lines(Across::Logarithmic, samples);
        present([("Median latency of both sides, µs, by batch", "Both axes are logarithmic.", charts::Shown::Open, charts)])
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
    /// The cases in the order of the table. On training and windows those libraries are asked that have them: torch.compile unrolls the scan's loop
    /// over the frames, which takes it minutes to compile backwards.
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
    pub fn run(&self, peers: &mut Processes, settings: &Settings, host: &Host, mut seen: impl FnMut(&PeerRow)) -> Result<PeerRun> {
        let scratch = tempfile::tempdir().context("no directory for the inputs of the peer")?;
        let mut run = PeerRun::default();
        for (network, case, library) in self.cases() {
            let row = match compare(&network, case, library, peers, &Bench { settings, host, scratch: scratch.path(), place: &self.place })
            {
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
    left_out: BTreeMap<(Library, String), usize>,
}

impl PeerRun {
    fn leave_out(&mut self, library: Library, why: Unavailable) {
        *self.left_out.entry((library, why.reason)).or_default() += 1;
    }

    /// A line for every library and reason, `jax: 8 cases left out: ...`.
    pub fn left_out(&self) -> impl Iterator<Item = String> {
        let cases = |&n: &usize| if n == 1 { "1 case".to_owned() } else { format!("{n} cases") };
        self.left_out.iter().map(move |((library, reason), n)| format!("{}: {} left out: {reason}", library.name(), cases(n)))
    }

    /// Our time over that of the fastest peer, of cases that differ in their library alone. A peer whose outputs disagree did other work and
    /// does not count; who is missing is named.
    pub fn beside_fastest(&self) -> Judged {
        let missing = self.left_out.keys().map(|(library, _)| library.name());
        let disagreeing = self.rows.iter().filter(|row| row.comparison.is_none()).map(|row| format!("{} ({})", row.peer, row.agreement));
        let without: Vec<String> = missing.chain(disagreeing).collect();
        let compared = self.rows.iter().filter_map(|row| Some((row, row.comparison.as_ref()?)));
        // Each was set beside ours in rounds of its own: the ratio tells who is faster, whatever the machine did meanwhile.
        let Some((row, c)) = compared.min_by(|(_, a), (_, b)| a.ratio.total_cmp(&b.ratio)) else {
            return Judged { found: f64::NAN, found_ci: None, evidence: format!("no peer: without {}", without.join(", ")) };
        };
        let (peer, rounds) = (row.peer.clone(), c.rounds);
        let sides = Sides { ours_us: c.ours_us.p50, peer, theirs_us: c.theirs_us.p50, rounds, without };
        Judged { found: 1.0 / c.ratio, found_ci: Some(c.ratio_ci.inverse()), evidence: sides.to_string() }
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

/// A network's step as a file for runtimes of ONNX, with its tables multiplied into their layer, as our side and the others have them.
pub(crate) fn exported(network: &Network, file: PathBuf) -> Result<PathBuf> {
    let reason = |error: candle_models::Error| Unavailable { reason: error.to_string() };
    let graphs = Registry::new([network.family]).graphs(&Bundle::open(&network.original)?, Tables::Folded).map_err(reason)?;
    let (name, graph) = graphs.first().context("a bundle without a network")?;
    std::fs::write(&file, onnx_model(name, graph)?).with_context(|| file.display().to_string())?;
    Ok(file)
}

fn compare(network: &Network, case: Case, library: Library, peers: &mut Processes, bench: &Bench) -> Result<PeerRow> {
    let peer = peers.of(library)?;
    let export = case.pass == Pass::Step && library.runs_exported_steps();
    let inputs = Inputs::random(&*network.load()?, &case);
    let theirs = PeerCase {
        library,
        device: case.device.clone(),
        dtype: if case.device == "cpu" { "f32".to_owned() } else { case.dtype.clone() },
        bundle: std::path::absolute(&network.original)?,
        onnx: export.then(|| exported(network, bench.scratch.join("step.onnx"))).transpose()?,
        pass: case.pass,
        batch: case.batch,
        frames: case.frames,
        threads: case.threads,
        inputs: bench.scratch.join("inputs.safetensors"),
        outputs: bench.scratch.join("outputs.safetensors"),
    };
    inputs.tensors()?.save_safetensors(&theirs.inputs)?;
    peer.prepare(&theirs).with_context(|| case.to_string())?;
    let theirs = read_answers(&theirs.outputs)?;
    let (mut ours, answers): (Box<dyn Rounds>, _) = match case.pass {
        Pass::Train => {
            let updates = network.family.updates().with_context(|| format!("a {} has no training step", network.family.name()))?;
            let mut calls = updates(network, &case, &inputs)?;
            let answers = calls.answers()?;
            (Box::new(Timed(calls)), answers)
        }
        Pass::Step | Pass::Window | Pass::Product => {
            let mut calls = calls(network.load()?, &case, &inputs, bench.place)?;
            let answers = calls.answers()?;
            (calls, answers)
        }
    };
    let agreement = agreement(&answers, &theirs, &network.dtype, network.family.drawn().as_ref()).with_context(|| case.to_string())?;
    let comparison = match agreement.holds() {
        true => Some(harness::compare(ours.as_mut(), peer, bench.settings).with_context(|| case.to_string())?),
        false => None,
    };
    Ok(PeerRow { host: bench.host.clone(), peer: peer.versions().of(library), case, agreement, comparison })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Side;
    use crate::stats::{Interval, Summary};
    use crate::table::markdown;
    use crate::testing;
    use candle_core::{DType, Device, Tensor};
    use candle_models::tensors::NamedTensors;
    use std::process::Command;

    /// Peers that give these answers for every library but JAX, which they do not have; a `prepare` is noted in a file beside the script.
    fn peers_without_jax(answers: &Path, script: &Path) -> Processes {
        let program = format!(
            r#"read -r line; echo '{{"ok":{{"pytorch":"2.11.0","onnxruntime":"1.25.1","tract":"0.23.9","jax":null}}}}'
while read -r line; do case "$line" in
  *'"library":"jax"'*) echo '{{"unavailable":"no package jax"}}';;
  *'"op":"prepare"'*) echo "$line" >> "$0.asked"; cp '{}' "$(expr "$line" : '.*"outputs":"\([^"]*\)"')"; echo '{{"ok":{{}}}}';;
  *) calls=$(expr "$line" : '.*"calls":\([0-9]*\)')
     echo "{{\"ok\":{{\"latencies_us\":[$(seq -s, 1 "$calls" | sed 's/[0-9][0-9]*/5.0/g')],\"seconds\":0.001}}}}";;
esac; done"#,
            answers.display()
        );
        std::fs::write(script, program).unwrap();
        [Side::Python, Side::Rust].into_iter().fold(Processes::default(), |peers, side| {
            let mut command = Command::new("sh");
            command.arg(script);
            peers.with(side, command)
        })
    }

    fn peer(comparison: Option<Comparison>) -> PeerRow {
        let agreement = Agreement { output: "logits".to_owned(), worst: 0.5, tolerance: 1e-4 };
        PeerRow {
            host: Host::detect(None),
            case: Case::of("mlp 512-512, independent heads", Pass::Window, [8, 60, 2], "f32"),
            peer: "onnxruntime 1.25.1".to_owned(),
            agreement,
            comparison,
        }
    }

    #[test]
    fn a_disagreement_prints_no_ratio() {
        let columns = PeerRow::COLUMNS.len();
        assert_eq!(peer(None).cells().len(), columns);
        assert!(markdown(&[peer(None)]).contains("outputs disagree (logits)"));
        let summary = Summary::of(&[1.0, 2.0]).unwrap();
        let interval = Interval { low: 1.5, high: 2.5 };
        let comparison =
            Comparison { ours_us: summary.clone(), theirs_us: summary, ratio: 2.0, ratio_ci: interval, ratio_range: interval, rounds: 11 };
        assert_eq!(peer(Some(comparison.clone())).cells().len(), columns);
        assert!(markdown(&[peer(Some(comparison))]).contains("| 2.00 | 1.50 to 2.50 | 11 |"));
    }

    /// JSON writes what is not finite as `null`.
    #[test]
    fn outputs_that_disagree_without_measure_still_do_when_read_back() {
        let row = PeerRow { agreement: Agreement { worst: f64::INFINITY, ..peer(None).agreement }, ..peer(None) };
        let back: PeerRow = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        assert!(!back.agreement.holds() && back.figures().iter().all(|figure| figure.value.is_nan()));
    }

    #[test]
    fn cases_of_a_missing_library_are_left_out_and_the_others_go_on() {
        let scratch = tempfile::tempdir().unwrap();
        let network = testing::network("mlp", scratch.path());
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
            libraries: vec![Library::Jax, Library::Pytorch, Library::Tract],
            passes: vec![Pass::Step],
            step_batches: vec![1],
            window_batches: vec![1],
            train_batch: 1,
            window: 2,
            threads: vec![1],
            place: Place::cpu(),
        };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, rounds: 4, ..Settings::default() };
        let script = scratch.path().join("peer.sh");
        let mut peers = peers_without_jax(&file, &script);
        let run = suite.run(&mut peers, &settings, &Host::detect(None), |_| {}).unwrap();
        let found = run.rows.iter().map(|row| (row.peer.as_str(), row.comparison.as_ref().unwrap().theirs_us.p50));
        assert_eq!(found.collect::<Vec<_>>(), [("pytorch 2.11.0", 5.0), ("tract 0.23.9", 5.0)]);
        // What runs exported steps is given one, the others are not.
        let asked = std::fs::read_to_string(script.with_extension("sh.asked")).unwrap();
        let given = |library: &str| asked.lines().find(|line| line.contains(library)).is_some_and(|line| line.contains("step.onnx"));
        assert!(given("\"tract\"") && !given("\"pytorch\""), "{asked}");
        let expected = "jax: 1 case left out: no package jax";
        assert_eq!(run.left_out().collect::<Vec<_>>(), [expected]);
        let judged = run.beside_fastest();
        assert!(judged.found > 0.0 && judged.evidence.ends_with(" rounds; without jax"), "{}", judged.evidence);
        assert_eq!(run.whole().unwrap_err().to_string(), expected);
    }

    #[test]
    fn limits_are_judged_against_the_fastest_peer_that_did_the_same_work() {
        let beside = |name: &str, ratio: f64| {
            let at = |us: f64| Summary::of(&[us, us]).unwrap();
            let interval = Interval { low: ratio / 1.25, high: ratio * 1.25 };
            let comparison = Comparison {
                ours_us: at(100.0),
                theirs_us: at(100.0 * ratio),
                ratio,
                ratio_ci: interval,
                ratio_range: interval,
                rounds: 6,
            };
            PeerRow { peer: name.to_owned(), agreement: Agreement { worst: 1e-6, ..peer(None).agreement }, ..peer(Some(comparison)) }
        };
        let disagreeing = PeerRow { peer: "tract 0.23.9".to_owned(), ..peer(None) };
        let mut run = PeerRun { rows: vec![beside("a 1", 2.0), disagreeing, beside("b 2", 0.5), beside("c 3", 1.0)], ..PeerRun::default() };
        run.leave_out(Library::Jax, Unavailable { reason: "no package jax".to_owned() });
        run.leave_out(Library::Burn, Unavailable { reason: "no such pass".to_owned() });
        let judged = run.beside_fastest();
        assert_eq!((judged.found, judged.found_ci), (2.0, Some(Interval { low: 1.6, high: 2.5 })));
        let sides = Sides::read(&judged.evidence).unwrap();
        assert_eq!((sides.peer.as_str(), sides.theirs_us, sides.rounds), ("b 2", 50.0, 6));
        assert_eq!(sides.without[..2], ["jax", "burn"]);
        assert!(sides.without[2].starts_with("tract 0.23.9 (logits"), "{:?}", sides.without);

        run.rows.retain(|row| row.comparison.is_none());
        let none = run.beside_fastest();
        assert!(
            none.found.is_nan() && none.found_ci.is_none() && none.evidence.starts_with("no peer: without jax, burn, tract"),
            "{none:?}"
        );
    }
}
