//! `candle-infer inspect`: what a bundle is, what it eats and gives, and what it costs.

use super::family::{Columns, InferFamily, Opened, Work};
use super::forward;
use super::output::{line, print};
use crate::bundle::{CARD, StoredParameter};
use crate::cli;
use crate::exec::SAMPLE;
use crate::exec::graph::Tables;
use crate::registry::Registry;
use crate::signature::{ANY, Signature, TensorSpec, Values};
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines of the model card that are shown.
const CARD_LINES: usize = 12;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long, conflicts_with = "forward")]
    json: bool,
    /// Print the networks as a program in NumPy: every equation with the names of its parameters. It answers like the engine.
    #[arg(long)]
    forward: bool,
}

pub fn run(registry: &Registry<dyn InferFamily>, arguments: &Arguments) -> Result<()> {
    if arguments.forward {
        let opened = Opened::new(registry, &arguments.bundle)?;
        return Ok(print(forward::program(&opened, &registry.graphs(&opened.bundle, Tables::AsStored)?)?)?);
    }
    let report = Report::new(registry, &arguments.bundle)?;
    if arguments.json { Ok(line(report.json())?) } else { report.print() }
}

struct Report {
    opened: Opened,
    parameters: Vec<StoredParameter>,
    work: Work,
    /// Operations without a kernel on the CPU.
    on_tensors: Vec<&'static str>,
    metadata: Value,
    card: Vec<String>,
}

impl Report {
    fn new(registry: &Registry<dyn InferFamily>, dir: &Path) -> Result<Self> {
        let opened = Opened::new(registry, dir)?;
        let bundle = &opened.bundle;
        let card = bundle.read_file(CARD)?.unwrap_or_default();
        let card = String::from_utf8_lossy(&card).lines().take(CARD_LINES).map(str::to_owned).collect();
        let (parameters, work, metadata) = (bundle.parameters()?, opened.family.work(bundle)?, bundle.metadata()?);
        let on_tensors = opened.on_tensors()?;
        Ok(Self { parameters, work, on_tensors, metadata, card, opened })
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
        self.opened.model().signature().state.iter().map(TensorSpec::width).sum()
    }

    fn print(&self) -> Result<()> {
        let manifest = self.opened.bundle.manifest();
        line(format_args!("{}: {}, format version {}", self.opened.bundle.dir().display(), manifest.family, manifest.format_version))?;
        line(format_args!("config: {}", manifest.model))?;
        let signature = self.opened.model().signature();
        for (title, specs) in [("inputs", &signature.inputs), ("outputs", &signature.outputs), ("state", &signature.state)] {
            line(format_args!("{title} per row and frame:{}", if specs.is_empty() { " none" } else { "" }))?;
            for spec in specs {
                line(format_args!("  {:<40} {:<5} {:?}", spec.name, format!("{:?}", spec.dtype()), spec.shape))?;
                let said = if title == "inputs" { explained(spec) } else { spec.meaning.to_owned() };
                if !said.is_empty() {
                    line(format_args!("      {said}"))?;
                }
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
            self.work.text
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
        let parameter = |p: &StoredParameter| json!({ "name": p.name, "dtype": p.dtype, "shape": p.shape, "values": elements(p) });
        let (manifest, signature) = (self.opened.bundle.manifest(), self.opened.model().signature());
        let mut report = json!({
            "bundle": self.opened.bundle.dir().display().to_string(),
            "family": manifest.family,
            "format_version": manifest.format_version,
            "config": manifest.model,
            "signature": signature_json(signature),
            "columns": self.opened.family.columns().iter().map(columns_json).collect::<Vec<_>>(),
            "parameters": self.parameters.iter().map(parameter).collect::<Vec<_>>(),
            "values": self.values(),
            "bytes": self.bytes(),
            "state_values": self.state_values(),
            "multiply_adds": self.work.frame,
            "operations_on_tensors": self.on_tensors,
            "metadata": self.metadata,
            "card": self.card.join("\n"),
        });
        if let Value::Object(report) = &mut report {
            report.extend(self.work.json.clone());
        }
        report
    }
}

/// What an input takes and holds until it is set, and what that means.
pub(super) fn explained(spec: &TensorSpec) -> String {
    let mut parts = Vec::new();
    match spec.values() {
        Values::Floats { within, .. } if *within != ANY => parts.push(format!("from {} to below {}", within.start, within.end)),
        Values::Indices { below, .. } if !below.is_empty() => parts.push(format!("below {}", list(below))),
        _ => {}
    }
    parts.push(match spec.values() {
        _ if spec.is_required() => "must be set".to_owned(),
        Values::Floats { default, .. } => format!("{} until it is set", list(default.as_deref().unwrap_or_default())),
        Values::Indices { default, .. } => format!("{} until it is set", list(default.as_deref().unwrap_or_default())),
    });
    if !spec.meaning.is_empty() {
        parts.push(spec.meaning.to_owned());
    }
    parts.join("; ").replace(&SAMPLE.to_string(), "SAMPLE")
}

/// Values for the eye: one where all are the same.
fn list<T: PartialEq + ToString>(values: &[T]) -> String {
    match values {
        [first, rest @ ..] if rest.iter().all(|x| x == first) => first.to_string(),
        _ => format!("[{}]", values.iter().map(T::to_string).collect::<Vec<_>>().join(" ")),
    }
}

/// A signature with limits, defaults and meanings.
pub(super) fn signature_json(signature: &Signature) -> Value {
    let each = |specs: &[TensorSpec], of: fn(&TensorSpec) -> Value| specs.iter().map(of).collect::<Vec<_>>();
    json!({
        "inputs": each(&signature.inputs, input_json),
        "outputs": each(&signature.outputs, spec_json),
        "state": each(&signature.state, spec_json),
    })
}

fn columns_json(columns: &Columns) -> Value {
    let Columns { tensor, columns, name, meaning } = columns;
    json!({ "tensor": tensor, "first": columns.start, "count": columns.len(), "name": name, "meaning": meaning })
}

fn spec_json(spec: &TensorSpec) -> Value {
    json!({ "name": spec.name, "dtype": format!("{:?}", spec.dtype()), "shape": spec.shape, "meaning": spec.meaning })
}

fn input_json(spec: &TensorSpec) -> Value {
    let mut object = spec_json(spec);
    let values = match spec.values() {
        Values::Floats { within, default } if *within != ANY => json!({ "within": [within.start, within.end], "default": default }),
        Values::Floats { default, .. } => json!({ "default": default }),
        Values::Indices { below, sample, default } => json!({ "below": below, "sample": sample.then_some(SAMPLE), "default": default }),
    };
    if let (Value::Object(object), Value::Object(values)) = (&mut object, values) {
        object.extend(values);
    }
    object
}

fn elements(p: &StoredParameter) -> usize {
    p.shape.iter().product()
}
