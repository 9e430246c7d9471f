//! Fourier transforms of cuFFT against the sums that define them.

use super::{cuda, flat, normal, on};
use candle_core::{DType, Device, Tensor};
use candle_models::cuda::fft::Transform;
use candle_models::cuda::{Gpu, empty};
use std::sync::Arc;

/// The bins of a row of complex numbers, `[length, 2]`.
fn bins(row: &[f32], count: usize) -> Vec<f32> {
    let length = row.len() / 2;
    let bin = |k: usize| {
        let sum = row.chunks_exact(2).enumerate().fold([0.0f64; 2], |[re, im], (n, x)| {
            let (sin, cos) = (-std::f64::consts::TAU * (k * n % length) as f64 / length as f64).sin_cos();
            let [x, y] = [x[0], x[1]].map(f64::from);
            [re + x * cos - y * sin, im + x * sin + y * cos]
        });
        sum.map(|x| x as f32)
    };
    (0..count).flat_map(bin).collect()
}

#[test]
fn transforms_are_the_sums_that_define_them() {
    let Some(device) = cuda() else { return };
    let Device::Cuda(cuda) = &*device else { unreachable!("the device is a GPU") };
    let gpu = Gpu::of(cuda).unwrap();
    for (length, batch) in [(1, 2), (12, 3), (37, 2), (64, 1)] {
        let close = |found: Vec<f32>, expected: Vec<f32>| {
            let scale = (length as f32).sqrt();
            let far = found.iter().zip(&expected).position(|(a, b)| (a - b).abs() > 1e-5 * scale);
            assert!(found.len() == expected.len() && far.is_none(), "{length} x {batch}: {far:?}");
        };
        let rows = normal("complex", &[batch, length, 2]);
        let expected: Vec<f32> = flat(&rows).chunks(2 * length).flat_map(|row| bins(row, length)).collect();
        let plan = gpu.transform(Transform::Complex, length, batch).unwrap();
        let (from, to) = (on(&rows, &device, DType::F32), empty((batch, length, 2), DType::F32, cuda).unwrap());
        plan.forward(&from, &to).unwrap();
        close(flat(&to), expected.clone());
        plan.forward(&from, &from).unwrap();
        close(flat(&from), expected);

        let rows = normal("real", &[batch, length]);
        let complex: Vec<f32> = flat(&rows).iter().flat_map(|x| [*x, 0.0]).collect();
        let expected = complex.chunks(2 * length).flat_map(|row| bins(row, length / 2 + 1)).collect();
        let (from, to) = (on(&rows, &device, DType::F32), empty((batch, length / 2 + 1, 2), DType::F32, cuda).unwrap());
        gpu.transform(Transform::Real, length, batch).unwrap().forward(&from, &to).unwrap();
        close(flat(&to), expected);
    }
}

/// In f64, over one axis and over both of a square, and back.
#[test]
fn transforms_of_doubles_are_their_sums() {
    let Some(device) = cuda() else { return };
    let Device::Cuda(cuda) = &*device else { unreachable!("the device is a GPU") };
    let gpu = Gpu::of(cuda).unwrap();
    for (of, rows, length) in [(Transform::Complex64, 3, 12), (Transform::Square64, 2, 6)] {
        let axes = if of == Transform::Square64 { length } else { 1 };
        let count = axes * length;
        let values = normal("doubles", &[rows, count, 2]).to_dtype(DType::F64).unwrap();
        let (from, to) = (on(&values, &device, DType::F64), empty((rows, count, 2), DType::F64, cuda).unwrap());
        let plan = gpu.transform(of, length, rows).unwrap();
        plan.forward(&from, &to).unwrap();
        let flat = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let (values, found) = (flat(&values), flat(&to));
        for (row, bins) in values.chunks(2 * count).zip(found.chunks(2 * count)) {
            for (bin, found) in bins.chunks(2).enumerate() {
                let sum = row.chunks(2).enumerate().fold([0.0; 2], |[re, im], (n, x)| {
                    let turns = (bin / length * (n / length)) as f64 / axes as f64 + (bin % length * (n % length)) as f64 / length as f64;
                    let (sin, cos) = (-std::f64::consts::TAU * turns).sin_cos();
                    [re + x[0] * cos - x[1] * sin, im + x[0] * sin + x[1] * cos]
                });
                assert!((found[0] - sum[0]).abs() < 1e-12 && (found[1] - sum[1]).abs() < 1e-12, "{of:?}, {bin}: {found:?} {sum:?}");
            }
        }
        plan.inverse(&to, &to).unwrap();
        let back = flat(&to);
        assert!(back.iter().zip(&values).all(|(back, value)| (back / count as f64 - value).abs() < 1e-12));
        let error = plan.forward(&from.to_dtype(DType::F32).unwrap(), &to).unwrap_err().to_string();
        assert!(error.contains("numbers of f64, found F32"), "{error}");
    }
    let real = gpu.transform(Transform::Real, 8, 1).unwrap();
    let numbers = empty(10, DType::F32, cuda).unwrap();
    assert!(real.inverse(&numbers, &numbers).unwrap_err().to_string().contains("have no inverse here"));
}

#[test]
fn plans_are_kept_and_refuse_what_has_another_size() {
    let Some(device) = cuda() else { return };
    let Device::Cuda(cuda) = &*device else { unreachable!("the device is a GPU") };
    let gpu = Gpu::of(cuda).unwrap();
    let plan = gpu.transform(Transform::Real, 8, 2).unwrap();
    assert!(Arc::ptr_eq(&plan, &gpu.transform(Transform::Real, 8, 2).unwrap()));
    assert!(!Arc::ptr_eq(&plan, &gpu.transform(Transform::Complex, 8, 2).unwrap()));
    let of = |numbers: usize, dtype| empty(numbers, dtype, cuda).unwrap();
    let (from, to) = (of(16, DType::F32), of(20, DType::F32));
    for (from, to) in [(&of(15, DType::F32), &to), (&from, &of(16, DType::F32)), (&of(16, DType::F64), &to), (&normal("host", &[16]), &to)]
    {
        let error = plan.forward(from, to).unwrap_err().to_string();
        assert!(error.contains("Fourier transforms: expected 2 x ") || error.contains("CUDA operation on a tensor on"), "{error}");
    }
    plan.forward(&from, &to).unwrap();
    let error = gpu.transform(Transform::Real, 1 << 40, 1).err().unwrap().to_string();
    assert!(error.contains("too many for one plan"), "{error}");
    let error = gpu.transform(Transform::Real, 0, 1).err().unwrap().to_string();
    assert!(error.contains("cuFFT cannot make transforms"), "{error}");
}
