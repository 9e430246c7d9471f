//! `candle-infer onnx`: a bundle's networks as ONNX, one file each, checked against the engine before they take their place.

mod proto;
mod write;

use super::compare::{Difference, Rehearsal, Sequences};
use super::family::{InferFamily, Opened};
use super::inspect;
use super::output::line;
use crate::cli::{self, Usage};
use crate::engine::Model;
use crate::exec::graph::{Evaluated, Graph, Tables};
use crate::files::write_directory;
use crate::registry::Registry;
use crate::tensors::NamedTensors;
use crate::{Error, device};
use anyhow::{Context, Result, bail};
use candle_core::Tensor;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use write::{IR_VERSION, OPERATOR_SET};

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory. The files hold its parameters as it stores them: f32, bf16, or 8-bit integers with factors (DequantizeLinear);
    /// f16 becomes f32. `export` stores them otherwise.
    bundle: PathBuf,
    /// Directory to write, NETWORK.onnx for every network: complete or not at all. Such a directory that is there already is replaced.
    out: PathBuf,
    /// Multiply tables by the weights that read their rows, as the engine does: larger files that runtimes answer faster. Where the weights
    /// are stored in f32.
    #[arg(long)]
    fold_tables: bool,
    /// Run the files in ONNX Runtime too, by this Python, which has the packages onnxruntime and numpy, and compare the answers.
    #[arg(long, value_name = "PYTHON")]
    runtime: Option<PathBuf>,
}

/// The runtime's program: tensors are read as those of a printed network.
fn check_program() -> String {
    include_str!("check.py").replace("# load\n", include_str!("../forward/load.py"))
}

/// What a step may differ by, as a share of an output's range: the same numbers, summed in another order. The engine's products with 8-bit
/// weights round activations to 16 bits on some machines.
fn tolerance(opened: &Opened) -> Result<f32> {
    Ok(if opened.bundle.parameters()?.iter().any(|p| p.dtype == "I8") { 0.01 } else { 1e-4 })
}

/// The bytes of a step as an ONNX file, without what the command notes of a bundle in it.
///
/// # Errors
/// If a parameter cannot be read.
pub fn model(name: &str, graph: &Graph) -> crate::Result<Vec<u8>> {
    write::model(name, String::new(), &[], graph)
}

pub fn run(registry: &Registry<dyn InferFamily>, arguments: &Arguments) -> Result<()> {
    let Arguments { bundle, out, runtime, .. } = arguments;
    // The comparison runs on this thread.
    // SAFETY: the caller of the command has promised that no other thread is running.
    unsafe { device::configure_threads(1) };
    let opened = Opened::new(registry, bundle)?;
    if let (Ok(a), Ok(b)) = (bundle.canonicalize(), out.canonicalize())
        && a == b
    {
        return Err(Usage::error(format!("{}: ONNX files cannot take the place of their bundle", out.display())));
    }
    let tables = if arguments.fold_tables { Tables::Folded } else { Tables::AsStored };
    let graphs = registry.graphs(&opened.bundle, tables).with_context(|| bundle.display().to_string())?;
    let tolerance = tolerance(&opened)?;
    let rehearsal = opened.family.rehearsal(&opened)?;
    let files: Vec<String> = graphs.iter().map(|(name, _)| format!("{name}.onnx")).collect();
    let (mut written, mut told) = (Vec::new(), Vec::new());
    write_directory(out, &files.iter().map(String::as_str).collect::<Vec<_>>(), |dir| {
        for (((file, (name, graph)), (_, model)), sequences) in files.iter().zip(&graphs).zip(&opened.networks).zip(&rehearsal.sequences) {
            let bytes = write::model(name, opened.describe()?, &metadata(&opened, model)?, graph)?;
            written.push((file.clone(), bytes.len()));
            fs::write(dir.join(file), bytes).map_err(Error::io(out.join(file)))?;
            let own: Arc<dyn Model> = Arc::new(Evaluated::new(graph.clone(), &**model));
            let expected = sequences.answers(model)?;
            let mut answers = vec![("the graph".to_owned(), sequences.answers(&own)?)];
            if let Some(python) = runtime {
                answers.push(asked(python, &dir.join(file), sequences).map_err(|e| Error::file(out.join(file), format!("{e:#}")))?);
            }
            for (who, answers) in answers {
                let differences = sequences.between(model, [&expected, &answers], rehearsal.measure)?;
                if let Some(d) = differences.iter().find(|d| !d.within(tolerance)) {
                    return Err(Error::file(
                        out.join(file),
                        format!("not written, {who} is off by more than {tolerance} of its {}: {d}", d.measure),
                    ));
                }
                told.push((format!("{who} of {name}"), differences));
            }
        }
        Ok(())
    })?;
    report(out, &written, &rehearsal, &told, tolerance)
}

fn report(
    out: &Path,
    written: &[(String, usize)],
    rehearsal: &Rehearsal,
    told: &[(String, Vec<Difference>)],
    tolerance: f32,
) -> Result<()> {
    for (file, bytes) in written {
        line(format_args!(
            "{}: {}, operator set {OPERATOR_SET}, IR version {IR_VERSION}",
            out.join(file).display(),
            cli::bytes(*bytes as u64)
        ))?;
    }
    line(format_args!("worst differences from the engine over {} (tolerance {tolerance} of the {}):", rehearsal.over, rehearsal.measure))?;
    for (who, differences) in told {
        differences.iter().try_for_each(|d| line(format_args!("  {who}: {d}")))?;
    }
    Ok(())
}

/// What the file says of itself beside the network.
fn metadata(opened: &Opened, model: &Arc<dyn Model>) -> crate::Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("family", opened.family.name().to_owned()),
        ("config", opened.bundle.manifest().model.to_string()),
        ("signature", inspect::signature_json(model.signature()).to_string()),
    ])
}

/// The answers of ONNX Runtime, and its name.
fn asked(python: &Path, model: &Path, sequences: &Sequences) -> Result<(String, NamedTensors)> {
    let scratch = tempfile::tempdir().context("no temporary directory")?;
    let [program, inputs, outputs] = ["check.py", "inputs.safetensors", "outputs.safetensors"].map(|name| scratch.path().join(name));
    fs::write(&program, check_program()).with_context(|| program.display().to_string())?;
    let mut given = sequences.inputs.clone();
    let [count, frames] = sequences.size;
    let resets: Vec<u32> = sequences.resets.iter().copied().map(u32::from).collect();
    given.insert("resets", Tensor::from_vec(resets, (count, frames), &candle_core::Device::Cpu)?);
    given.save_safetensors(&inputs)?;
    let arguments: [&OsStr; 4] = [program.as_os_str(), model.as_os_str(), inputs.as_os_str(), outputs.as_os_str()];
    let found = Command::new(python).args(arguments).output().with_context(|| format!("--runtime {}", python.display()))?;
    if !found.status.success() {
        let said = String::from_utf8_lossy(&found.stderr);
        bail!("{} has not run the model: {}", python.display(), said.lines().last().unwrap_or("it says nothing"));
    }
    Ok((String::from_utf8_lossy(&found.stdout).trim().to_owned(), NamedTensors::load_safetensors(&outputs)?))
}
