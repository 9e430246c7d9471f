//! Run-time dispatch and the scalar maths that the compiler vectorises.
//!
//! [`kernel!`] wraps a function over slices so that its body is compiled once per instruction set (AVX-512, AVX2, NEON,
//! portable) and chosen at run time. Bodies are plain loops without branches; the type parameter tells whether a fused
//! multiply-add exists, because without one `mul_add` is a library call.
//!
//! All kernels ask [`arch`], so [`SIMD_VARIABLE`] lowers the whole program: the tests run their properties on every path
//! that the machine has, and a doubtful result can be compared with another path's.

use pulp::{Arch, Simd};
use std::sync::OnceLock;

/// The variable that lowers the instruction set of the CPU kernels, for tests and diagnosis: a name from [`Path`].
pub(crate) const SIMD_VARIABLE: &str = "CANDLE_SIMD";

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    /// `amx`, `avx512vnni`, `avx512`, `avx2`, `neon` or `portable`.
    pub name: &'static str,
    arch: Arch,
    integers: Integers,
    /// Whether a dot product of bf16 is there and takes as long as a multiply-add of f32, which is half its work.
    fast_bf16: bool,
    /// Whether many rows are multiplied on the tiles of AMX, in bf16 and in 8 bits.
    tiles: bool,
}

/// How weights of 8 bits are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Integers {
    /// Widened to f32.
    Widened,
    /// By the multiply-adds of 16-bit integers of AVX2.
    MultiplyAdd,
    /// By the dot products of bytes of AVX-512 VNNI.
    DotProduct,
}

impl Path {
    /// What this machine has, best first.
    fn available() -> Vec<Self> {
        let mut paths = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use pulp::x86::{V3, V4};
            if let Some(simd) = V4::try_new() {
                let [plain, integers] =
                    [Integers::Widened, Integers::DotProduct].map(|integers| Self::of("avx512", Arch::V4(simd), integers));
                if std::arch::is_x86_feature_detected!("avx512vnni") {
                    let fast_bf16 = std::arch::is_x86_feature_detected!("avx512bf16") && is_amd();
                    let vectors = Self { name: "avx512vnni", fast_bf16, ..integers };
                    #[cfg(target_os = "linux")]
                    if super::amx::is_usable() {
                        paths.push(Self { name: "amx", tiles: true, ..vectors });
                    }
                    paths.push(vectors);
                }
                paths.push(plain);
            }
            if let Some(simd) = V3::try_new() {
                paths.push(Self::of("avx2", Arch::V3(simd), Integers::MultiplyAdd));
            }
        }
        #[cfg(target_arch = "aarch64")]
        if let Some(simd) = pulp::aarch64::Neon::try_new() {
            paths.push(Self::of("neon", Arch::Neon(simd), Integers::Widened));
        }
        paths.push(Self::of("portable", Arch::Scalar, Integers::Widened));
        paths
    }

    fn of(name: &'static str, arch: Arch, integers: Integers) -> Self {
        Self { name, arch, integers, fast_bf16: false, tiles: false }
    }

    /// The path of that name, or else the best one and what is wrong with the name.
    fn choose(wanted: Option<&str>) -> (Self, Option<String>) {
        let paths = Self::available();
        let best = paths[0];
        let Some(wanted) = wanted else { return (best, None) };
        match paths.iter().find(|p| p.name == wanted) {
            Some(path) => (*path, None),
            None => {
                let names = paths.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
                (best, Some(format!("{SIMD_VARIABLE}: expected one of {names} on this machine, found {wanted:?}; using {}", best.name)))
            }
        }
    }
}

/// Whether the processor is one of AMD's, on which a dot product of bf16 takes as long as a multiply-add of f32. On Intel's it takes twice as long or more, and
/// one rounded activation made 32 rows 0.6 times as fast as in f32. Asking takes microseconds in a virtual machine.
#[cfg(target_arch = "x86_64")]
fn is_amd() -> bool {
    const AMD: [&[u8; 4]; 3] = [b"Auth", b"enti", b"cAMD"];
    let found = std::arch::x86_64::__cpuid(0);
    [found.ebx, found.edx, found.ecx] == AMD.map(|part| u32::from_le_bytes(*part))
}

/// The path of this process, decided at the first call; a name that is none here is reported once on standard error.
pub(crate) fn path() -> &'static Path {
    static CHOSEN: OnceLock<Path> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let wanted = std::env::var_os(SIMD_VARIABLE).map(|value| value.to_string_lossy().into_owned());
        let (path, warning) = Path::choose(wanted.as_deref());
        if let Some(text) = warning {
            eprintln!("warning: {text}");
        }
        path
    })
}

/// The names of the paths that this machine has, best first.
pub(crate) fn available() -> Vec<&'static str> {
    Path::available().iter().map(|path| path.name).collect()
}

/// What kernels dispatch on.
#[inline]
pub(crate) fn arch() -> Arch {
    path().arch
}

/// Whether dot products of bf16 gain on this path.
pub(crate) fn has_fast_bf16() -> bool {
    path().fast_bf16
}

/// Whether this path multiplies many rows on the tiles of AMX.
#[inline]
pub(crate) fn has_tiles() -> bool {
    path().tiles
}

/// How this path multiplies weights of 8 bits.
#[inline]
pub(crate) fn integers() -> Integers {
    path().integers
}

/// Defines a function whose body is compiled for every instruction set and chosen at run time. With `S = simd` that value is the body's own, for operations on
/// registers.
macro_rules! kernel {
    ($(#[$attr:meta])* $vis:vis fn $name:ident<$simd:ident $(= $value:ident)? $(, const $c:ident: $ct:ty)*>($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$attr])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<'a $(, const $c: $ct)*>($($arg: $ty),*) {
            struct Args<'a $(, const $c: $ct)*>($($ty,)* std::marker::PhantomData<&'a ()>);
            impl<'a $(, const $c: $ct)*> pulp::WithSimd for Args<'a $(, $c)*> {
                type Output = ();
                #[inline(always)]
                fn with_simd<$simd: pulp::Simd>(self, simd: $simd) {
                    let _ = simd;
                    $(let $value = simd;)?
                    let Args($($arg,)* _) = self;
                    $body
                }
            }
            $crate::ops::simd::arch().dispatch(Args::<'a $(, $c)*>($($arg,)* std::marker::PhantomData))
        }
    };
}
pub(crate) use kernel;

/// A level of the caches that something is fetched into.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The nearest.
    First,
    /// The one behind it.
    Second,
}

/// Asks for the cache line of this place. It need not be a valid place.
#[inline(always)]
pub fn prefetch(place: *const f32, level: Level) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: it reads nothing, and any place will do.
        unsafe {
            match level {
                Level::First => _mm_prefetch::<_MM_HINT_T0>(place.cast()),
                Level::Second => _mm_prefetch::<_MM_HINT_T1>(place.cast()),
            }
        }
    }
    let _ = (place, level);
}

/// `a * b + c`, fused where the instruction set has it.
#[inline(always)]
pub fn fma<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::F32_LANES > 1 { a.mul_add(b, c) } else { a * b + c }
}

/// A number, or 0 where it is too small to count. Intel's processors multiply subnormal numbers slowly, and the slopes of saturated
/// functions are such: training got five times slower by them.
#[inline(always)]
pub fn counted(gradient: f32) -> f32 {
    if gradient.abs() < 1e-30 { 0.0 } else { gradient }
}

/// `e^x`, relative error below 2e-7; saturates near 1e-38 and 1e38 instead of reaching 0 and infinity.
#[inline(always)]
pub fn exp<S: Simd>(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x > -87.0 { x } else { -87.0 };
    let x = if x < 88.0 { x } else { 88.0 };
    let t = fma::<S>(x, std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = fma::<S>(n, -0.693_359_4, x);
    let r = fma::<S>(n, 2.121_944_4e-4, r);
    let p = fma::<S>(1.987_569_1e-4, r, 1.398_199_9e-3);
    let p = fma::<S>(p, r, 8.333_452e-3);
    let p = fma::<S>(p, r, 4.166_579_6e-2);
    let p = fma::<S>(p, r, 1.666_666_5e-1);
    let p = fma::<S>(p, r, 0.5);
    let p = fma::<S>(p, r * r, r) + 1.0;
    let scale = f32::from_bits((t.to_bits() << 23).wrapping_add(0x3f80_0000));
    p * scale
}

/// The natural logarithm of a positive number that is not subnormal, relative error below 1e-14; of 0 it is far below that of any other.
#[inline(always)]
pub fn ln(x: f64) -> f64 {
    // x = 2^n m with m between the root of a half and the root of two; adding 1024 keeps n positive in unsigned numbers.
    const LEAST: u64 = 0x3fe6_a09e_667f_3bcd;
    let biased = x.to_bits().wrapping_sub(LEAST).wrapping_add(1024 << 52) >> 52;
    let m = f64::from_bits(x.to_bits().wrapping_sub(biased.wrapping_sub(1024) << 52));
    // An integer below 2^52 in the low bits of 2^52.
    const SHIFT: u64 = 0x4330_0000_0000_0000;
    let n = f64::from_bits(SHIFT | biased) - (f64::from_bits(SHIFT) + 1024.0);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut sum = 0.0;
    for k in [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * z + 1.0 / k;
    }
    n * std::f64::consts::LN_2 + 2.0 * s * sum
}

/// The logistic function.
#[inline(always)]
pub fn sigmoid<S: Simd>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<S>(-x))
}

/// Hyperbolic tangent, absolute error below 2e-7.
#[inline(always)]
pub fn tanh<S: Simd>(x: f32) -> f32 {
    1.0 - 2.0 / (1.0 + exp::<S>(2.0 * x))
}

/// `ln(1 + e^x)` without overflow; absolute error below 2e-7.
#[inline(always)]
pub fn softplus<S: Simd>(x: f32) -> f32 {
    let e = exp::<S>(-x.abs());
    // ln(1 + e) = 2 atanh(s), s = e / (2 + e) in (0, 1/3]
    let s = e / (2.0 + e);
    let q = s * s;
    let p = fma::<S>(1.0 / 13.0, q, 1.0 / 11.0);
    let p = fma::<S>(p, q, 1.0 / 9.0);
    let p = fma::<S>(p, q, 1.0 / 7.0);
    let p = fma::<S>(p, q, 0.2);
    let p = fma::<S>(p, q, 1.0 / 3.0);
    let p = fma::<S>(p, q, 1.0);
    let x = if x > 0.0 { x } else { 0.0 };
    fma::<S>(2.0 * s, p, x)
}

/// The sum over `x`, in registers: the compiler may not reorder a float sum.
#[inline(always)]
pub fn sum<S: Simd>(simd: S, x: &[f32]) -> f32 {
    let (vectors, tail) = S::as_simd_f32s(x);
    let (fours, rest) = vectors.as_chunks::<4>();
    let mut sums = [simd.splat_f32s(0.0); 4];
    for four in fours {
        for (sum, x) in sums.iter_mut().zip(four) {
            *sum = simd.add_f32s(*sum, *x);
        }
    }
    for x in rest {
        sums[0] = simd.add_f32s(sums[0], *x);
    }
    total(simd, sums) + tail.iter().sum::<f32>()
}

/// The sum of `(x - mean) (y - mean_of_y)`.
#[inline(always)]
pub fn products<S: Simd>(simd: S, x: &[f32], mean: f32, y: &[f32], mean_of_y: f32) -> f32 {
    let ((x, x_tail), (y, y_tail)) = (S::as_simd_f32s(x), S::as_simd_f32s(y));
    let ((x_fours, x_rest), (y_fours, y_rest)) = (x.as_chunks::<4>(), y.as_chunks::<4>());
    let (x_mean, y_mean) = (simd.splat_f32s(mean), simd.splat_f32s(mean_of_y));
    let mut sums = [simd.splat_f32s(0.0); 4];
    for (x, y) in x_fours.iter().zip(y_fours) {
        for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
            *sum = simd.mul_add_e_f32s(simd.sub_f32s(*x, x_mean), simd.sub_f32s(*y, y_mean), *sum);
        }
    }
    for (x, y) in x_rest.iter().zip(y_rest) {
        sums[0] = simd.mul_add_e_f32s(simd.sub_f32s(*x, x_mean), simd.sub_f32s(*y, y_mean), sums[0]);
    }
    let tail: f32 = x_tail.iter().zip(y_tail).map(|(x, y)| (x - mean) * (y - mean_of_y)).sum();
    total(simd, sums) + tail
}

#[inline(always)]
fn total<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> f32 {
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

/// `x Phi(x)` with the distribution function of the normal distribution, absolute error below 3e-7 or that share of `x`.
///
/// It is `max(x, 0) - a Phi(-a)` for `a = |x|`, and `Phi(-a)` half the reciprocal of the eighth power of a polynomial: the form of Abramowitz and Stegun 7.1.28, of
/// which the exponential is no part. The coefficients are those of the least error of `a Phi(-a)` on `[0, 8]`, by least squares with weights that
/// follow the largest errors.
#[inline(always)]
pub fn gelu<S: Simd>(x: f32) -> f32 {
    // Farther out the power would leave what f32 can say, and the tail is next to nothing.
    let a = x.abs();
    let a = if a < 16.0 { a } else { 16.0 };
    let p = fma::<S>(2.932_475_8e-6, a, -1.674_67e-5);
    let p = fma::<S>(p, a, 9.758_12e-5);
    let p = fma::<S>(p, a, 1.113_532e-4);
    let p = fma::<S>(p, a, 9.806_594e-4);
    let p = fma::<S>(p, a, 8.591_634e-3);
    let p = fma::<S>(p, a, 4.478_88e-2);
    let p = fma::<S>(p, a, 9.973_25e-2);
    let p = fma::<S>(p, a, 1.0);
    let p = p * p;
    let p = p * p;
    // What is no number stays none.
    let positive = if x < 0.0 { 0.0 } else { x };
    positive - 0.5 * a / (p * p)
}

/// The error function of `x` by Abramowitz and Stegun 7.1.26, with `e^(-x^2)` from who knows it.
#[inline(always)]
pub fn erf_from<S: Simd>(x: f32, exponential: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / fma::<S>(0.327_591_1, a, 1.0);
    let p = fma::<S>(1.061_405_4, t, -1.453_152);
    let p = fma::<S>(p, t, 1.421_413_8);
    let p = fma::<S>(p, t, -0.284_496_74);
    let p = fma::<S>(p, t, 0.254_829_6);
    let y = 1.0 - p * t * exponential;
    y.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_chosen_by_name_and_an_unknown_one_is_named() {
        let all = Path::available();
        assert_eq!((all[all.len() - 1].name, Path::choose(None).0.name), ("portable", all[0].name));
        for path in &all {
            let (found, warning) = Path::choose(Some(path.name));
            assert_eq!((found.name, warning), (path.name, None));
        }
        for wanted in ["", "AVX2", "avx1024"] {
            let (found, warning) = Path::choose(Some(wanted));
            let warning = warning.unwrap();
            assert_eq!(found.name, all[0].name);
            assert!(warning.starts_with("CANDLE_SIMD: expected one of ") && warning.contains(&format!("found {wanted:?}")), "{warning}");
        }
    }

    #[test]
    fn the_kernels_tests_pass_on_every_lower_path() {
        for path in Path::available().iter().skip_while(|p| p.name != path().name).skip(1) {
            let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
            tests.args(["ops::", "estimator::particles::", "--skip", "lower_path"]).env(SIMD_VARIABLE, path.name);
            let output = tests.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && !text.contains(" 0 passed"), "{}: {text}", path.name);
        }
    }

    #[test]
    fn logarithms_are_exact_to_rounding() {
        let close = |x: f64| assert!((ln(x) - x.ln()).abs() <= 1e-14 * (1.0 + x.ln().abs()), "ln {x}: {} and {}", ln(x), x.ln());
        (-300..300).for_each(|power| {
            [1.0, 1.000_001, 1.2, std::f64::consts::SQRT_2, 1.9, 9.99].map(|x| x * 10f64.powi(power)).map(close).fill(())
        });
        assert_eq!(ln(1.0), 0.0);
        assert!(ln(0.0) < -700.0 && ln(f64::from(f32::MIN_POSITIVE)) < -87.0);
    }

    kernel! {
        fn evaluate<S>(x: &'a [f32], out: &'a mut [[f32; 5]]) {
            for (&x, o) in x.iter().zip(out) {
                *o = [exp::<S>(x), sigmoid::<S>(x), tanh::<S>(x), softplus::<S>(x), gelu::<S>(x)];
            }
        }
    }

    fn check(x: f32, got: [f32; 5]) {
        let y = f64::from(x);
        let erf = |x: f64| {
            // By its Taylor series: exact to f64 rounding for |x| < 4.
            let (mut sum, mut term) = (x, x);
            for n in 1..80 {
                term *= -x * x / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            if x.abs() < 4.0 { sum * 2.0 / std::f64::consts::PI.sqrt() } else { x.signum() }
        };
        let gelu = 0.5 * y * (1.0 + erf(y * std::f64::consts::FRAC_1_SQRT_2));
        let want = [y.exp(), 1.0 / (1.0 + (-y).exp()), y.tanh(), y.exp().ln_1p(), gelu];
        for (i, (g, w)) in got.into_iter().zip(want).enumerate() {
            let tolerance = if i == 0 { 4e-7 * w } else { 4e-7 * w.abs().max(1.0) };
            assert!((f64::from(g) - w).abs() <= tolerance, "function {i} at {x}: {g} instead of {w}");
        }
    }

    #[test]
    fn functions_match_f64_on_the_widest_and_on_the_portable_path() {
        let x: Vec<f32> = (-8000..8000).map(|i| i as f32 * 0.01).collect();
        let mut out = vec![[0.0; 5]; x.len()];
        evaluate(&x, &mut out);
        for (&x, o) in x.iter().zip(out) {
            check(x, o);
            type P = pulp::Scalar;
            check(x, [exp::<P>(x), sigmoid::<P>(x), tanh::<P>(x), softplus::<P>(x), gelu::<P>(x)]);
        }
    }

    #[test]
    fn far_arguments_stay_finite() {
        type P = pulp::Scalar;
        for x in [-1e30f32, -200.0, 200.0, 1e30, f32::MAX, f32::MIN] {
            for y in [exp::<P>(x), sigmoid::<P>(x), tanh::<P>(x), gelu::<P>(x)] {
                assert!(y.is_finite(), "{x} gives {y}");
            }
        }
        assert_eq!((softplus::<P>(1e30), gelu::<P>(1e30)), (1e30, 1e30));
        assert!(gelu::<P>(f32::NAN).is_nan() && gelu::<P>(-1e30).abs() < 1e-30);
    }
}
