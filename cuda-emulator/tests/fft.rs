//! Fourier transforms: every kind against the sum that defines it, at lengths with small, large and no factors, and what is refused.
mod common;
use common::*;
use cuda_emulator::{driver::*, fft::*};
use std::{ffi::c_void, ptr::null_mut};

const C2C: u32 = 0x29;
const R2C: u32 = 0x2a;
const C2R: u32 = 0x2c;
const Z2Z: u32 = 0x69;

/// A plan whose work area the test brings.
fn plan(s: &Session, kind: u32, length: i32, batch: i32) -> i32 {
    plan_of(s, kind, &[length], batch)
}

fn plan_of(s: &Session, kind: u32, lengths: &[i32], batch: i32) -> i32 {
    let (mut plan, mut lengths, mut work) = (0, lengths.to_vec(), 0);
    ok(cufftCreate(&mut plan));
    ok(cufftSetAutoAllocation(plan, 0));
    ok(cufftMakePlanMany(plan, lengths.len() as i32, lengths.as_mut_ptr(), null_mut(), 1, 0, null_mut(), 1, 0, kind, batch, &mut work));
    ok(cufftSetWorkArea(plan, s.alloc(work) as *mut c_void));
    ok(cufftSetStream(plan, s.stream));
    plan
}

fn at(address: u64) -> *mut c_void {
    address as *mut c_void
}

/// Numbers that repeat late.
fn numbers(n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608. - 1.).collect()
}

/// The sum that defines the transform of a row of complex numbers.
fn sum(row: &[(f64, f64)], sign: f64) -> Vec<(f64, f64)> {
    let n = row.len();
    let bin = |k: usize| {
        row.iter().enumerate().fold((0., 0.), |(re, im), (i, x)| {
            let (sin, cos) = (sign * std::f64::consts::TAU * (i * k % n) as f64 / n as f64).sin_cos();
            (re + x.0 * cos - x.1 * sin, im + x.0 * sin + x.1 * cos)
        })
    };
    (0..n).map(bin).collect()
}

fn close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*a) - b).abs() < 1e-6 * (found.len() as f64).sqrt().max(b.abs()), "{what} at {i}: {a} {b}");
    }
}

fn flat(row: &[(f64, f64)]) -> Vec<f64> {
    row.iter().flat_map(|x| [x.0, x.1]).collect()
}

#[test]
fn transforms_are_the_sums_that_define_them() {
    let s = Session::new();
    for length in [1, 2, 3, 8, 15, 61, 100, 256] {
        let (n, batch) = (length as usize, 3);
        let values = numbers(2 * n * batch);
        let rows: Vec<Vec<(f64, f64)>> =
            values.chunks(2 * n).map(|row| row.chunks(2).map(|x| (f64::from(x[0]), f64::from(x[1]))).collect()).collect();
        let (from, complex) = (s.upload(&values), plan(&s, C2C, length, batch as i32));
        for (direction, sign) in [(-1, -1.), (1, 1.)] {
            let to = s.alloc(4 * values.len());
            ok(cufftExecC2C(complex, at(from), at(to), direction));
            let expected: Vec<f64> = rows.iter().flat_map(|row| flat(&sum(row, sign))).collect();
            close(&s.download(to, values.len()), &expected, &format!("{length}, {direction}"));
        }
        // In place, and then the input is gone.
        ok(cufftExecC2C(complex, at(from), at(from), -1));
        let expected: Vec<f64> = rows.iter().flat_map(|row| flat(&sum(row, -1.))).collect();
        close(&s.download(from, values.len()), &expected, &format!("{length} in place"));

        let (half, values) = (n / 2 + 1, numbers(n * batch));
        let (from, to) = (s.upload(&values), s.alloc(8 * half * batch));
        ok(cufftExecR2C(plan(&s, R2C, length, batch as i32), at(from), at(to)));
        let real = |row: &[f32]| sum(&row.iter().map(|x| (f64::from(*x), 0.)).collect::<Vec<_>>(), -1.);
        let expected: Vec<f64> = values.chunks(n).flat_map(|row| flat(&real(row)[..half])).collect();
        close(&s.download(to, 2 * half * batch), &expected, &format!("{length}, real"));
        // And back: so many times as much.
        let back = s.alloc(4 * n * batch);
        ok(cufftExecC2R(plan(&s, C2R, length, batch as i32), at(to), at(back)));
        let expected: Vec<f64> = values.iter().map(|x| f64::from(*x) * n as f64).collect();
        close(&s.download(back, n * batch), &expected, &format!("{length}, back"));
        assert!(s.download::<f32>(to, 2 * half * batch).iter().all(|x| x.is_nan()), "the input of a transform to real numbers is lost");
    }
}

/// Over two axes each number counts for every bin with the turns of both, and in f64 no digit of f64 is lost.
#[test]
fn transforms_of_two_axes_and_of_doubles_are_their_sums() {
    let s = Session::new();
    let (n, m, batch) = (3usize, 4usize, 2);
    let values: Vec<f64> = numbers(2 * n * m * batch).into_iter().map(|x| f64::from(x) / 3.).collect();
    let lengths = [n as i32, m as i32];
    let (from, to, both) = (s.upload(&values), s.alloc(8 * values.len()), plan_of(&s, Z2Z, &lengths, batch as i32));
    for (direction, sign) in [(-1, -1.), (1, 1.)] {
        ok(cufftExecZ2Z(both, at(from), at(to), direction));
        let found = s.download::<f64>(to, values.len());
        for (plane, found) in values.chunks(2 * n * m).zip(found.chunks(2 * n * m)) {
            for (bin, found) in found.chunks(2).enumerate() {
                let (k, l) = (bin / m, bin % m);
                let expected = plane.chunks(2).enumerate().fold((0., 0.), |(re, im), (i, x)| {
                    let turns = (i / m * k) as f64 / n as f64 + (i % m * l) as f64 / m as f64;
                    let (sin, cos) = (sign * std::f64::consts::TAU * turns).sin_cos();
                    (re + x[0] * cos - x[1] * sin, im + x[0] * sin + x[1] * cos)
                });
                assert!((found[0] - expected.0).abs() < 1e-14 && (found[1] - expected.1).abs() < 1e-14, "{bin}: {found:?} {expected:?}");
            }
        }
    }
    // One axis of doubles, in place.
    ok(cufftExecZ2Z(plan(&s, Z2Z, 12, 2), at(from), at(from), -1));
    let row: Vec<(f64, f64)> = values[..24].chunks(2).map(|x| (x[0], x[1])).collect();
    let found = s.download::<f64>(from, 24);
    assert!(found.iter().zip(flat(&sum(&row, -1.))).all(|(a, b)| (a - b).abs() < 1e-14));
}

#[test]
fn a_transform_keeps_its_place_in_the_stream() {
    let s = Session::new();
    let (from, to) = (s.upload(&[1f32, 0., 2., 0.]), s.upload(&[0f32; 4]));
    ok(cufftExecC2C(plan(&s, C2C, 2, 1), at(from), at(to), -1));
    // A copy that is queued behind the transform changes nothing of it, though the transform has not run at the call.
    ok(cuMemcpyHtoDAsync_v2(from, [9f32; 4].as_ptr().cast(), 16, s.stream));
    assert_eq!(s.download::<f32>(to, 4), [3., 0., -1., 0.]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let s = Session::new();
    let (mut free, mut length, mut work) = (0, 8, 0);
    ok(cufftCreate(&mut free));
    assert_eq!(cufftExecC2C(free, null_mut(), null_mut(), -1), 1, "not made yet");
    assert_eq!(cufftMakePlanMany(free, 3, [8, 8, 8].as_mut_ptr(), null_mut(), 1, 0, null_mut(), 1, 0, C2C, 1, &mut work), 16);
    assert_eq!(cufftMakePlanMany(free, 2, [8, 8].as_mut_ptr(), null_mut(), 1, 0, null_mut(), 1, 0, R2C, 1, &mut work), 16);
    assert_eq!(cufftMakePlanMany(free, 2, [8, 0].as_mut_ptr(), null_mut(), 1, 0, null_mut(), 1, 0, C2C, 1, &mut work), 8);
    assert_eq!(cufftMakePlanMany(free, 1, &mut length, null_mut(), 1, 0, null_mut(), 1, 0, 0x6a, 1, &mut work), 3);
    assert_eq!(cufftMakePlanMany(free, 1, &mut length, null_mut(), 1, 0, null_mut(), 1, 0, C2C, 0, &mut work), 8);
    ok(cufftSetAutoAllocation(free, 0));
    ok(cufftMakePlanMany(free, 1, &mut length, null_mut(), 1, 0, null_mut(), 1, 0, C2C, 4, &mut work));
    let data = s.alloc(4 * 8 * 8);
    assert_eq!(cufftExecC2C(free, at(data), at(data), -1), 13, "no work area");
    assert_eq!(cufftSetWorkArea(free, at(data + 8)), 4);
    ok(cufftSetWorkArea(free, at(s.alloc(work))));
    ok(cufftSetStream(free, s.stream));
    assert_eq!(cufftExecC2C(free, at(data + 4), at(data), -1), 9);
    assert_eq!(cufftExecR2C(free, at(data), at(data)), 1, "another type");
    assert_eq!(cufftExecZ2Z(free, at(data), at(data), -1), 1, "another type");
    assert_eq!(cufftExecC2C(free, at(data), at(data), 0), 4);
    ok(cufftExecC2C(free, at(data), at(data), -1));
    ok(s.sync());
    ok(cufftDestroy(free));
    assert_eq!(cufftDestroy(free), 1);
    assert_eq!(cufftExecC2C(free, at(data), at(data), -1), 1);
}

/// A buffer that is too short, and a work area that is, are illegal addresses.
#[test]
fn memory_is_checked() {
    for (bytes, area) in [(8 * 64 - 8, 8 * 64), (8 * 64, 8 * 64 - 8)] {
        let s = Session::new();
        let plan = plan(&s, C2C, 16, 4);
        let (data, area) = (s.alloc(bytes), s.alloc(area));
        ok(cufftSetWorkArea(plan, at(area)));
        ok(cufftExecC2C(plan, at(data), at(data), -1));
        assert_eq!(s.sync(), 700);
    }
}
