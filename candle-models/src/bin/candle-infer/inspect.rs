//! `candle-infer inspect`: what a bundle is, what it eats and gives, and what it costs.

use crate::output::line;
use anyhow::{Context, Result};
use candle_models::beam::{self, Beam, BeamConfig};
use candle_models::bundle::{Bundle, CARD, ParameterSpec, Role, StoredParameter};
use candle_models::cli;
use candle_models::engine::{self, Model, Runner};
use candle_models::tensors::TensorSpec;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Lines of the model card that are shown.
const CARD_LINES: usize = 12;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let report = Report::new(&arguments.bundle)?;
    if arguments.json { Ok(line(report.json())?) } else { report.print() }
}

struct Report {
    bundle: Bundle,
    model: Arc<dyn Model>,
    parameters: Vec<StoredParameter>,
    work: Work,
    /// Operations without a kernel on the CPU.
    on_tensors: Vec<&'static str>,
    metadata: Value,
    card: Vec<String>,
}

/// Multiply-adds of one row: inputs times outputs of every linear layer. Lookups, norms, convolutions, the scan and attention over the
/// window are left out.
struct Work {
    /// In every frame: with a beam controller, at every measurement.
    frame: usize,
    episode: Option<Episode>,
}

/// Of a beam controller.
struct Episode {
    measurements: usize,
    /// Multiply-adds behind the last measurement.
    decided: usize,
}

impl Work {
    fn of(bundle: &Bundle) -> candle_models::Result<Self> {
        let matrices: Vec<ParameterSpec> = engine::parameters(bundle)?.into_iter().filter(|spec| spec.role == Role::Matrix).collect();
        let sum = |of: &dyn Fn(&str) -> bool| matrices.iter().filter(|p| of(&p.name)).map(|p| p.shape.iter().product::<usize>()).sum();
        if bundle.manifest().family != beam::FAMILY {
            return Ok(Self { frame: sum(&|_| true), episode: None });
        }
        let (measurements, decided) = (bundle.config::<BeamConfig>()?.measurements, sum(&|name| !Beam::measures(name)));
        Ok(Self { frame: sum(&Beam::measures), episode: Some(Episode { measurements, decided }) })
    }

    fn text(&self) -> String {
        let count = |n: usize| cli::count(n as u64);
        let frame = count(self.frame);
        let Some(Episode { measurements, decided }) = self.episode else { return format!("{frame} multiply-adds per row and frame") };
        let (each, all) = (count(decided), count(measurements * self.frame + decided));
        format!(
            "{frame} multiply-adds per measurement (the user's network) and {each} per episode (what both ends decide behind the last): {all} in an episode of {measurements} measurements"
        )
    }
}

impl Report {
    fn new(dir: &PathBuf) -> Result<Self> {
        let bundle = Bundle::open(dir)?;
        let model = engine::load(&bundle).with_context(|| dir.display().to_string())?;
        let card = bundle.read_file(CARD)?.unwrap_or_default();
        let card = String::from_utf8_lossy(&card).lines().take(CARD_LINES).map(str::to_owned).collect();
        let on_tensors = Runner::new(model.clone(), 1, 1)?.on_tensors().to_vec();
        Ok(Self {
            parameters: bundle.parameters()?,
            work: Work::of(&bundle)?,
            on_tensors,
            metadata: bundle.metadata()?,
            card,
            model,
            bundle,
        })
    }

    fn values(&self) -> usize {
        self.parameters.iter().map(elements).sum()
    }

    fn bytes(&self) -> usize {
        self.parameters.iter().map(|p| p.bytes).sum()
    }

    /// How many values are stored in which dtype.
    fn formats(&self) -> String {
        let mut values: BTreeMap<&str, usize> = BTreeMap::new();
        self.parameters.iter().for_each(|p| *values.entry(&p.dtype).or_default() += elements(p));
        let name = |dtype: &str| if dtype == "I8" { "I8 with a factor per output".to_owned() } else { dtype.to_owned() };
        values.into_iter().map(|(dtype, n)| format!("{} values in {}", cli::count(n as u64), name(dtype))).collect::<Vec<_>>().join(", ")
    }

    fn state_values(&self) -> usize {
        self.model.signature().state.iter().map(TensorSpec::width).sum()
    }

    fn print(&self) -> Result<()> {
        let manifest = self.bundle.manifest();
        line(format_args!("{}: {}, format version {}", self.bundle.dir().display(), manifest.family, manifest.format_version))?;
        line(format_args!("config: {}", manifest.model))?;
        let signature = self.model.signature();
        for (title, specs) in [("inputs", &signature.inputs), ("outputs", &signature.outputs), ("state", &signature.state)] {
            line(format_args!("{title} per row and frame:{}", if specs.is_empty() { " none" } else { "" }))?;
            for spec in specs {
                line(format_args!("  {:<40} {:<5} {:?}", spec.name, format!("{:?}", spec.dtype), spec.shape))?;
            }
        }
        line("parameters:")?;
        for p in &self.parameters {
            line(format_args!("  {:<40} {:<5} {:<14} {:>9}", p.name, p.dtype, format!("{:?}", p.shape), elements(p)))?;
        }
        let (values, bytes, state) =
            (cli::count(self.values() as u64), cli::bytes(self.bytes() as u64), cli::bytes(4 * self.state_values() as u64));
        line(format_args!("formats: {}", self.formats()))?;
        line(format_args!("size: {} tensors, {values} values, {bytes}; {state} of state per row", self.parameters.len()))?;
        line(format_args!(
            "work: {} (inputs x outputs of every linear layer; lookups, norms, convolution, scan and attention not counted)",
            self.work.text()
        ))?;
        line(match &self.on_tensors[..] {
            [] => "operations: all have kernels on the CPU".to_owned(),
            names => format!("operations without a kernel on the CPU, which run on tensors: {}", names.join(", ")),
        })?;
        if !self.metadata.is_null() {
            line(format_args!("metadata: {}", self.metadata))?;
        }
        if !self.card.is_empty() {
            line(format_args!("{CARD}:"))?;
            self.card.iter().try_for_each(|text| line(format_args!("  {text}")))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let specs = |specs: &[TensorSpec]| -> Vec<Value> {
            specs.iter().map(|s| json!({ "name": s.name, "dtype": format!("{:?}", s.dtype), "shape": s.shape })).collect()
        };
        let parameter = |p: &StoredParameter| json!({ "name": p.name, "dtype": p.dtype, "shape": p.shape, "values": elements(p) });
        let (manifest, signature) = (self.bundle.manifest(), self.model.signature());
        let mut report = json!({
            "bundle": self.bundle.dir().display().to_string(),
            "family": manifest.family,
            "format_version": manifest.format_version,
            "config": manifest.model,
            "signature": { "inputs": specs(&signature.inputs), "outputs": specs(&signature.outputs), "state": specs(&signature.state) },
            "parameters": self.parameters.iter().map(parameter).collect::<Vec<_>>(),
            "values": self.values(),
            "bytes": self.bytes(),
            "state_values": self.state_values(),
            "multiply_adds": self.work.frame,
            "operations_on_tensors": self.on_tensors,
            "metadata": self.metadata,
            "card": self.card.join("\n"),
        });
        if let Some(Episode { measurements, decided }) = self.work.episode {
            // Beside those of the measurements.
            report["multiply_adds_per_episode"] = decided.into();
            report["measurements_per_episode"] = measurements.into();
        }
        report
    }
}

fn elements(p: &StoredParameter) -> usize {
    p.shape.iter().product()
}
