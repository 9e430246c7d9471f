//! Weights as 8-bit storage will give them, with gradients as if they had not been rounded.

use candle_core::{Result, Tensor};

/// In f32, adding and subtracting this rounds numbers below 2^22 to integers, ties to even.
const TO_INTEGER: f64 = 12_582_912.0;

/// A weight `[inputs, outputs]` in f32, every column rounded to the nearest of 255 multiples of max|x| / 127: the values of
/// [`Format::q8`](super::Format::q8), bit for bit. The gradient passes straight through to the weight (Bengio et al. 2013; per-channel
/// symmetric scales as in Jacob et al. 2018).
pub fn fake_quantise(weight: &Tensor) -> Result<Tensor> {
    let x = weight.detach();
    let largest = x.abs()?.max_keepdim(0)?;
    let scale = largest.broadcast_div(&Tensor::new(127f32, x.device())?)?;
    // A column of zeros, or of numbers so small that the scale vanishes, becomes zeros.
    let divisor = scale.eq(0.0)?.where_cond(&scale.ones_like()?, &scale)?;
    let integers = x.broadcast_div(&divisor)?.affine(1.0, TO_INTEGER)?.affine(1.0, -TO_INTEGER)?;
    let rounded = integers.broadcast_mul(&scale)?;
    // Adding zero keeps the bits and leads the gradient to the weight.
    rounded + (weight - x)?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Format;
    use crate::random::Random;
    use candle_core::{Device, Var};

    fn weight(rows: usize, columns: usize) -> Vec<f32> {
        let mut values = vec![0.0; rows * columns];
        Random::new(7).fill_normal(0, &mut values);
        // Ties, a column of zeros, one of very small numbers.
        (values[0], values[columns], values[2 * columns]) = (127.0, 2.5, 3.5);
        values.iter_mut().enumerate().for_each(|(i, v)| match i % columns {
            1 => *v = 0.0,
            2 => *v *= 1e-42,
            _ => {}
        });
        values
    }

    #[test]
    fn values_are_those_of_8_bit_storage() {
        let (rows, columns) = (31, 5);
        let values = weight(rows, columns);
        let format = Format::q8(&values, columns);
        let Format::Q8(scale) = &format else { panic!("not 8 bits") };
        let integers = format.integers(&values).unwrap();
        let expected: Vec<f32> = integers.iter().enumerate().map(|(i, q)| f32::from(*q) * scale[i % columns]).collect();
        let tensor = Tensor::from_slice(&values, (rows, columns), &Device::Cpu).unwrap();
        let found = fake_quantise(&tensor).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(found, expected);
        assert_eq!((found[0], found[columns], found[2 * columns]), (127.0, 2.0, 4.0));
        // What is on the grid stays.
        let again = fake_quantise(&Tensor::from_slice(&found, (rows, columns), &Device::Cpu).unwrap()).unwrap();
        assert_eq!(again.flatten_all().unwrap().to_vec1::<f32>().unwrap(), found);
    }

    #[test]
    fn the_gradient_passes_straight_through() {
        let var = Var::from_slice(&weight(4, 5), (4, 5), &Device::Cpu).unwrap();
        let factors = Tensor::arange(0f32, 20.0, &Device::Cpu).unwrap().reshape((4, 5)).unwrap();
        let loss = (fake_quantise(&var).unwrap() * &factors).unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        let found = grads.get(&var).unwrap();
        assert_eq!(found.to_vec2::<f32>().unwrap(), factors.to_vec2::<f32>().unwrap());
    }
}
