//! A weight of a tape, packed for both directions.

use super::Parameters;
use crate::exec::host;
use crate::ops::{self, Activation, Linear, OutPointer, PackedMatrix, Products, Rows};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::ops::{amx, simd};
use crate::{Error, Result};
use candle_core::{CpuStorage, DType, Storage, Tensor};
use rayon::prelude::*;
use std::ops::Range;

/// Calls `f` with the values of a parameter, where they lie if they do so in order.
fn with_host<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let tensor = tensor.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) => Ok(f(&values[start..end])),
        _ => Err(Error::Input("a tape's parameters lie on the host".to_owned())),
    }
}

/// How many rows a weight meets between two updates.
#[derive(Clone, Copy, PartialEq)]
enum Meets {
    /// Those of all frames, or of all places of all fields.
    Many,
    /// One of each field.
    Few,
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
impl Meets {
    /// Whether products with a weight of that size gain from tiles. In f32 the three parts of rows and weight take so long to lay out that both must be large: on
    /// a Xeon an operator of 24 or 64 channels learns half as fast when the weights of its waves, which meet one row of a field, lie in tiles.
    fn gain_from_tiles(self, products: Products, [inputs, outputs]: [usize; 2]) -> bool {
        const WIDE: usize = 64;
        simd::has_tiles() && (products == Products::Bf16 || (self == Self::Many && inputs.min(outputs) >= WIDE))
    }
}

/// A matrix packed for products from the right.
enum Packed {
    Panels(PackedMatrix),
    /// For the processor's tiles, where it has them.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Tiles(amx::Tiles, Vec<f32>),
}

impl Packed {
    fn new(products: Products, [inputs, outputs]: [usize; 2], weight: &[f32], bias: &[f32], meets: Meets) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if meets.gain_from_tiles(products, [inputs, outputs]) {
            return Self::Tiles(amx::Tiles::new(products, inputs, outputs, weight), bias.to_vec());
        }
        let _ = meets;
        Self::Panels(PackedMatrix::new(inputs, outputs, weight, bias, &products.format()).rounding_activations())
    }

    fn transposed(products: Products, [inputs, outputs]: [usize; 2], weight: &[f32], meets: Meets) -> Self {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if meets.gain_from_tiles(products, [inputs, outputs]) {
            return Self::Tiles(amx::Tiles::transposed(products, inputs, outputs, weight), Vec::new());
        }
        let _ = meets;
        Self::Panels(PackedMatrix::transposed(inputs, outputs, weight, &products.format()).rounding_activations())
    }

    /// `out = x W + b`.
    fn multiply(&self, x: Rows, out: &mut [f32]) {
        match self {
            Self::Panels(matrix) => {
                assert!(out.len() >= x.rows * matrix.outputs);
                let pointer = OutPointer::rows(out, matrix.outputs);
                let (rows, panels) = (0..x.rows, 0..matrix.panel_count());
                // SAFETY: `out` has a row of the matrix's width for every row of `x` (asserted) and is borrowed alone.
                unsafe { ops::linear_block(matrix, Activation::None, (x.data, x.stride), rows, panels, pointer) };
            }
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::Tiles(tiles, bias) => amx::multiply(tiles, x, bias, out),
        }
    }
}

/// A weight packed for both directions, its bias, and where their gradients go.
pub(crate) struct Weight {
    products: Products,
    forward: Packed,
    transposed: Packed,
    bias: Vec<f32>,
    outputs: usize,
    /// Whether its gradient is summed on the way, as that of the bias is, or a product behind it.
    summed: bool,
    /// Among the parameters whose gradients come so.
    pub(super) place: Range<usize>,
    /// Among those whose gradients are summed on the way.
    bias_place: Range<usize>,
}

impl Weight {
    pub(super) fn new(layer: &Linear, summed: bool, parameters: &mut Parameters) -> Result<Self> {
        let (inputs, outputs) = layer.weight.dims2()?;
        let bias = layer.bias.as_ref().map(host).transpose()?.unwrap_or_default();
        let (shape, products) = ([inputs, outputs], parameters.products);
        let (forward, transposed) = with_host(&layer.weight, |values| {
            rayon::join(
                || Packed::new(products, shape, values, &bias, Meets::Many),
                || Packed::transposed(products, shape, values, Meets::Many),
            )
        })?;
        let bias_place = layer.bias.as_ref().map_or(0..0, |bias| parameters.summed.of(bias));
        let place = if summed { &mut parameters.summed } else { &mut parameters.multiplied }.of(&layer.weight);
        Ok(Self { products, forward, transposed, bias, outputs, summed, place, bias_place })
    }

    /// One for every matrix of a stack `[..., inputs, outputs]`: their gradients lie side by side as they do.
    pub(super) fn stack(matrices: &Tensor, parameters: &mut Parameters) -> Result<Vec<Self>> {
        let [.., inputs, outputs] = *matrices.dims() else {
            return Err(Error::tensor("weight", "matrices", format!("{:?}", matrices.dims())));
        };
        let (shape, products, all) = ([inputs, outputs], parameters.products, parameters.multiplied.of(matrices));
        let one = |(values, start): (&[f32], usize)| {
            let (forward, transposed) =
                (Packed::new(products, shape, values, &[], Meets::Few), Packed::transposed(products, shape, values, Meets::Few));
            let place = start..start + values.len();
            Self { products, forward, transposed, bias: Vec::new(), outputs, summed: false, place, bias_place: 0..0 }
        };
        with_host(matrices, |values| {
            let size = inputs * outputs;
            values.par_chunks(size).enumerate().map(|(i, values)| one((values, all.start + i * size))).collect()
        })
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn bias(&self) -> &[f32] {
        &self.bias
    }

    /// `out = x W + b`.
    pub fn multiply(&self, x: Rows, out: &mut [f32]) {
        self.forward.multiply(x, out);
    }

    /// `out = dy W^T`, rows of `dy` one behind the other.
    pub fn multiply_transposed(&self, dy: &[f32], out: &mut [f32]) {
        self.transposed.multiply(Rows { data: dy, rows: dy.len() / self.outputs, width: self.outputs, stride: self.outputs }, out);
    }

    /// Adds the bias's gradient, the sum of the rows of `dy`.
    pub fn add_bias_gradient(&self, dy: &[f32], sums: &mut [f32]) {
        if !self.bias_place.is_empty() {
            ops::add_rows_into(&mut sums[self.bias_place.clone()], dy);
        }
    }

    /// Adds the gradients that are summed on the way, of the bias and perhaps of the weight; rows of `dy` one behind the other.
    pub fn add_sums(&self, x: Rows, dy: &[f32], sums: &mut [f32]) {
        self.add_bias_gradient(dy, sums);
        if self.summed {
            let dy = Rows { data: dy, rows: x.rows, width: self.outputs, stride: self.outputs };
            let place = &mut sums[self.place.clone()];
            assert_eq!(place.len(), x.width * self.outputs);
            // SAFETY: the place has a row of outputs for every input (asserted), and is borrowed alone.
            unsafe { self.add_gradient(x, dy, OutPointer::rows(place, self.outputs)) };
        }
    }

    /// Adds `x^T dy`, a part of the weight's gradient, to `out`.
    ///
    /// # Safety
    /// `out` points at `x.width` rows of `dy.width` values that nobody else touches.
    pub unsafe fn add_gradient(&self, x: Rows, dy: Rows, out: OutPointer) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.forward {
                #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
                Packed::Tiles(..) => amx::multiply_transposed(self.products, x, dy, out),
                Packed::Panels(_) => ops::multiply_transposed(self.products, x, dy, out),
            }
        }
    }
}
