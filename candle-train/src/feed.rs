//! Networks without memory on tapes: inputs in, outputs by their names.

use candle_core::Tensor;
use candle_models::network::{Layers, Network, Tapes};
use candle_models::recurrent::Recurrent;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};

/// What a network says of `[n, ...]` of all its inputs, in the order of its signature: `[n, width]` by name, with gradients.
pub(crate) fn feed(network: &Network<impl Layers>, inputs: &[Tensor], tapes: &Tapes) -> Result<NamedTensors> {
    let together = if let [one] = inputs { one.clone() } else { Tensor::cat(inputs, 1)? };
    let found = network.feed(&together, tapes)?;
    let mut start = 0;
    let mut output = |spec: &TensorSpec| {
        start += spec.width();
        Ok::<_, Error>((spec.name.clone(), found.narrow(1, start - spec.width(), spec.width())?))
    };
    network.signature().outputs.iter().map(&mut output).collect()
}

/// The values of an output, one behind another.
///
/// # Errors
/// If there is no such output.
pub(crate) fn values(answers: &NamedTensors, name: &str) -> Result<Vec<f32>> {
    Ok(answers.get(name)?.flatten_all()?.to_vec1()?)
}
