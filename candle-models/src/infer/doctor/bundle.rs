//! A bundle as a GPU sees it: which products miss the tensor cores' alignment, and what it takes.

use super::gpus::{self, Footprint, Recommendation};
use super::speed::{self, Speed};
use crate::bundle::{ParameterSpec, Role};
use crate::infer::{InferFamily, Opened};
use crate::registry::Registry;
use crate::signature::TensorSpec;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Tensor cores load 16 bytes at a time: eight values of 16 bits.
const ALIGNMENT: usize = 8;

/// What there is to say about a bundle.
pub struct BundleReport {
    pub path: PathBuf,
    pub footprint: Footprint,
    /// Linear layers with a side that is no multiple of eight.
    pub misaligned: Vec<(String, [usize; 2])>,
    pub recommended: Vec<Recommendation>,
    /// Operations without a kernel on the CPU.
    pub on_tensors: Vec<&'static str>,
    /// How fast this CPU runs it.
    pub speeds: Vec<Speed>,
}

impl BundleReport {
    /// Reads a bundle, and runs it on up to so many threads.
    pub fn new(registry: &Registry<dyn InferFamily>, path: &Path, threads: usize) -> Result<Self> {
        let opened = Opened::new(registry, path)?;
        let parameters = opened.family.parameters(&opened.bundle)?;
        let signature = opened.model().signature();
        let bytes = |specs: &[TensorSpec]| 4 * specs.iter().map(TensorSpec::width).sum::<usize>() as u64;
        let footprint = Footprint {
            state_bytes: bytes(&signature.state),
            frame_bytes: bytes(&signature.inputs) + bytes(&signature.outputs),
            ..of_parameters(&parameters)
        };
        let recommended = gpus::recommend(&footprint);
        let (on_tensors, speeds) = (opened.on_tensors()?, speed::measure(opened.model(), threads)?);
        Ok(Self { path: path.to_owned(), footprint, misaligned: misaligned(&parameters), recommended, on_tensors, speeds })
    }
}

/// Inputs and outputs of the linear layers by name.
fn matrices(parameters: &[ParameterSpec]) -> impl Iterator<Item = (&str, [usize; 2])> {
    let matrix = |p: &ParameterSpec| p.role == Role::Matrix;
    parameters.iter().filter(move |p| matrix(p)).filter_map(|p| Some((p.name.as_str(), <[usize; 2]>::try_from(p.shape.as_slice()).ok()?)))
}

fn misaligned(parameters: &[ParameterSpec]) -> Vec<(String, [usize; 2])> {
    let misses = |sides: [usize; 2]| sides.iter().any(|side| !side.is_multiple_of(ALIGNMENT));
    matrices(parameters).filter(|(_, sides)| misses(*sides)).map(|(name, sides)| (name.to_owned(), sides)).collect()
}

/// What follows from the parameters alone.
fn of_parameters(parameters: &[ParameterSpec]) -> Footprint {
    let values = |p: &ParameterSpec| p.shape.iter().product::<usize>() as u64;
    let products = matrices(parameters).map(|(_, [inputs, outputs])| (inputs * outputs) as u64).sum();
    let others: u64 = parameters.iter().filter(|p| p.role != Role::Matrix).map(values).sum();
    let outputs = || matrices(parameters).map(|(_, [_, outputs])| outputs as u64);
    Footprint {
        weight_bytes: 2 * products + 4 * others,
        products,
        state_bytes: 0,
        frame_bytes: 0,
        activation_bytes: 4 * outputs().sum::<u64>(),
        widest: outputs().max().unwrap_or(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_miss_the_alignment_are_named() {
        let parameters = [
            ParameterSpec::matrix("wide.weight", [288, 512]),
            ParameterSpec::matrix("head.weight", [64, 17]),
            ParameterSpec::new("head.bias", &[17]),
            ParameterSpec::matrix("odd.weight", [9, 16]),
        ];
        assert_eq!(misaligned(&parameters), [("head.weight".to_owned(), [64, 17]), ("odd.weight".to_owned(), [9, 16])]);
        let footprint = of_parameters(&parameters);
        let products = 288 * 512 + 64 * 17 + 9 * 16;
        assert_eq!((footprint.products, footprint.weight_bytes), (products, 2 * products + 4 * 17));
        assert_eq!((footprint.activation_bytes, footprint.widest), (4 * (512 + 17 + 16), 512));
    }
}
