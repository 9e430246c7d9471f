//! The discrete Fourier transform of a few waves, across a line first, then down the lines: as products with tables, or by FFT where many waves are kept
//! of a long axis. In products, waves down come in pairs `+j` and `-j` that share their cosines and sines, so that these are made once for both.
//!
//! Layouts, channels last: lines `[n, L, 2, C]` (real parts before imaginary ones), folded `[J, 2, L, 2, C]` (the product with cosines before that with
//! sines) for `J = K / 2 + 1` absolute frequencies, coefficients `[K, L]` each `[2, C]` at a distance that the caller chooses.

use super::super::OutPointer;
use super::fast::Fast;
use super::left_product::{Lines, left_product};
use std::f64::consts::TAU;
use std::ops::Range;

/// How a transform across is scaled. The derivative of one scale's analysis is the other's synthesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// By the number of places: an analysis gives means.
    Mean,
    /// Twice, for the waves of negative frequencies across that are not kept, and once those that are their own counterpart.
    Twice,
}

/// The tables of a scale.
#[derive(Debug)]
struct Across {
    /// `[2 L, m]`: cosines, and sines with the sign of an analysis.
    analyse: Vec<f32>,
    /// `[m, 2 L]`: the same turned.
    synthesise: Vec<f32>,
}

/// The waves that are kept of a grid.
#[derive(Debug)]
pub(super) struct Waves {
    /// Places down and across.
    pub grid: [usize; 2],
    /// Waves down and across, not more than the grid has.
    pub kept: [usize; 2],
    mean: Across,
    twice: Across,
    /// `[2 J, n]`: cosines and sines down.
    down: Vec<f32>,
    /// `[n, 2 J]`.
    up: Vec<f32>,
    /// The plans of an axis, down and across, that is transformed by FFT.
    fast: [Option<Fast>; 2],
}

/// The frequencies of a line with so many places from which on an FFT takes less time than products with tables. By measurement on AVX2, with 24 to 64
/// channels: four for every doubling of the places where these are products of 2, 3 and 5, and three times as many where an FFT takes a detour.
fn fft_from(places: usize) -> usize {
    let mut rest = places.max(1);
    for factor in [2, 3, 5] {
        while rest.is_multiple_of(factor) {
            rest /= factor;
        }
    }
    let each = if rest == 1 { 4.0 } else { 12.0 };
    (each * (places as f64).log2()) as usize + 1
}

/// Cosines and sines of all waves on so many places: few angles, of which every wave takes some. A step of a training makes them anew.
struct Turns(Vec<[f64; 2]>);

impl Turns {
    fn new(places: usize) -> Self {
        let angle = |part: usize| TAU * part as f64 / places as f64;
        Self((0..places).map(|part| [angle(part).cos(), angle(part).sin()]).collect())
    }

    /// Of `frequency place / places` turns, exact in their number.
    fn of(&self, frequency: usize, place: usize) -> [f64; 2] {
        self.0[frequency * place % self.0.len()]
    }
}

fn turned(table: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| table.iter().skip(c).step_by(columns).copied()).collect()
}

impl Waves {
    pub fn new(grid: [usize; 2], kept: [usize; 2]) -> Self {
        Self::with(grid, kept, [kept[0] / 2 >= fft_from(grid[0]), kept[1] >= fft_from(grid[1])])
    }

    /// With FFTs down and across where they are asked for.
    pub fn with(grid: [usize; 2], kept: [usize; 2], by_fft: [bool; 2]) -> Self {
        let across = |scale| {
            let analyse: Vec<f32> = across(grid, kept[1], scale).into_iter().map(|x| x as f32).collect();
            Across { synthesise: turned(&analyse, grid[1]), analyse }
        };
        let (n, turns) = (grid[0], Turns::new(grid[0]));
        let line = |(frequency, part): (usize, usize)| (0..n).map(|h| turns.of(frequency, h)[part] as f32).collect::<Vec<_>>();
        let down: Vec<f32> = (0..=kept[0] / 2).flat_map(|j| [(j, 0), (j, 1)]).flat_map(line).collect();
        Self {
            grid,
            kept,
            mean: across(Scale::Mean),
            twice: across(Scale::Twice),
            up: turned(&down, n),
            down,
            fast: [0, 1].map(|axis| by_fft[axis].then(|| Fast::new(grid[axis]))),
        }
    }

    pub fn places(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    pub fn modes(&self) -> usize {
        self.kept[0] * self.kept[1]
    }

    /// The number of the mode of frequency 0.
    pub fn mean_mode(&self) -> usize {
        self.kept[0] / 2 * self.kept[1]
    }

    /// Values of lines and of folded lines for a channel.
    pub fn lines(&self) -> usize {
        self.grid[0] * 2 * self.kept[1]
    }

    pub fn folded(&self) -> usize {
        2 * self.frequencies() * 2 * self.kept[1]
    }

    /// Absolute frequencies down.
    fn frequencies(&self) -> usize {
        self.kept[0] / 2 + 1
    }

    /// What a line across and a wave down cost for a channel, in values of an activation: an activation takes as long as ten multiply-adds, and an FFT as
    /// long as the products of the frequencies from which on it is taken.
    pub fn costs(&self) -> [usize; 2] {
        let ([n, m], [_, l]) = (self.grid, self.kept);
        [(2 * l.min(fft_from(m)) * m).div_ceil(10), (4 * self.frequencies().min(fft_from(n)) * n).div_ceil(10)]
    }

    /// Operations of a transform for a channel; those of an FFT are 5 for each place and each doubling of the places, and half of that for real numbers.
    pub fn flop(&self) -> f64 {
        let ([n, m], [_, l]) = (self.grid, self.kept);
        let doublings = [n, m].map(|places| places as f64 * (places as f64).log2());
        let across = if self.fast[1].is_some() { 2.5 * doublings[1] } else { (2 * 2 * l * m) as f64 };
        let down = if self.fast[0].is_some() { 5.0 * doublings[0] } else { (2 * 2 * self.frequencies() * n * 2) as f64 };
        n as f64 * across + l as f64 * down
    }

    /// `[2 L, m]`: the transform across in f64, for the reference.
    pub fn across_f64(&self, scale: Scale) -> Vec<f64> {
        across(self.grid, self.kept[1], scale)
    }

    /// `[2 n, 2 K]`: the transform down in f64, from real and imaginary parts to such.
    pub fn turns(&self) -> Vec<f64> {
        let ([n, _], [k, _]) = (self.grid, self.kept);
        let (mut table, turns) = (Vec::with_capacity(4 * n * k), Turns::new(n));
        for h in 0..n {
            for part in 0..2 {
                for number in 0..k {
                    let (frequency, sign) = self.frequency(number);
                    let [cos, sin] = turns.of(frequency, h);
                    let sin = sign * sin;
                    table.extend(if part == 0 { [cos, -sin] } else { [sin, cos] });
                }
            }
        }
        table
    }

    /// The absolute frequency of wave `number` down, and its sign.
    fn frequency(&self, number: usize) -> (usize, f64) {
        let middle = self.kept[0] / 2;
        if number < middle { (middle - number, -1.0) } else { (number - middle, 1.0) }
    }

    fn tables(&self, scale: Scale) -> &Across {
        match scale {
            Scale::Mean => &self.mean,
            Scale::Twice => &self.twice,
        }
    }

    /// Line `h` of `x` `[n, m, C]` to its waves.
    ///
    /// # Safety
    /// `lines` points at [`Self::lines`] values for each channel, of which nobody else uses those of this line.
    pub unsafe fn across(&self, scale: Scale, x: &[f32], channels: usize, h: usize, lines: OutPointer) {
        let ([_, m], [_, l]) = (self.grid, self.kept);
        let x = &x[h * m * channels..(h + 1) * m * channels];
        let out = OutPointer { data: lines.data.wrapping_add(h * 2 * l * channels), stride: channels };
        if let Some(fast) = &self.fast[1] {
            // SAFETY: the caller's promise.
            return unsafe { fast.across(x, channels, |wave| shares(self.grid, wave, scale), l, out) };
        }
        let x = Lines { data: x.as_ptr(), rows: m, width: channels, stride: channels };
        // SAFETY: the caller's promise.
        unsafe { left_product(&self.tables(scale).analyse, x, out) };
    }

    /// The waves `across` of all lines to their coefficients, `stride` values apart.
    ///
    /// # Safety
    /// `folded` and `to` point at as many values as [`Self::folded`] and the modes say, and nobody else uses those of these waves.
    pub unsafe fn down(&self, lines: &[f32], channels: usize, across: Range<usize>, folded: OutPointer, (to, stride): (OutPointer, usize)) {
        let ([n, _], [k, l], width) = (self.grid, self.kept, 2 * channels);
        if let Some(fast) = &self.fast[0] {
            // SAFETY: the caller's promise.
            return unsafe { fast.down(lines, channels, across, self.kept, (to, stride)) };
        }
        let first = across.start * width;
        let lines = Lines { data: lines[first..n * l * width].as_ptr(), rows: n, width: across.len() * width, stride: l * width };
        // SAFETY: the caller's promise.
        unsafe { left_product(&self.down, lines, OutPointer { data: folded.data.wrapping_add(first), stride: l * width }) };
        for number in 0..k {
            let (frequency, sign) = self.frequency(number);
            for wave in across.clone() {
                let part = |part: usize| folded.data.wrapping_add(((2 * frequency + part) * l + wave) * width).cast_const();
                // SAFETY: the caller's promise; the product has written both parts.
                let (cos, sin, to) = unsafe {
                    let to = to.data.wrapping_add((number * l + wave) * stride);
                    (
                        std::slice::from_raw_parts(part(0), width),
                        std::slice::from_raw_parts(part(1), width),
                        std::slice::from_raw_parts_mut(to, width),
                    )
                };
                turn(cos, sin, sign as f32, to);
            }
        }
    }

    /// Coefficients `y`, `stride` values apart, to the waves `across` of all lines: what [`Self::down`] does, turned.
    ///
    /// # Safety
    /// As for [`Self::down`].
    pub unsafe fn up(&self, (y, stride): (&[f32], usize), channels: usize, across: Range<usize>, folded: OutPointer, lines: OutPointer) {
        let ([k, l], width) = (self.kept, 2 * channels);
        if let Some(fast) = &self.fast[0] {
            // SAFETY: the caller's promise.
            return unsafe { fast.up((y, stride), channels, across, self.kept, lines) };
        }
        let first = across.start * width;
        for j in 0..self.frequencies() {
            for wave in across.clone() {
                let coefficients = |number: usize| &y[(number * l + wave) * stride..][..width];
                let middle = k / 2;
                let (above, below) = ((middle + j < k).then(|| coefficients(middle + j)), (j > 0).then(|| coefficients(middle - j)));
                let part = |part: usize| folded.data.wrapping_add(((2 * j + part) * l + wave) * width);
                // SAFETY: the caller's promise.
                let (cos, sin) =
                    unsafe { (std::slice::from_raw_parts_mut(part(0), width), std::slice::from_raw_parts_mut(part(1), width)) };
                fold(above, below, cos, sin);
            }
        }
        let (data, stride) = (folded.data.wrapping_add(first), l * width);
        let folded = Lines { data, rows: 2 * self.frequencies(), width: across.len() * width, stride };
        // SAFETY: the folded lines of these waves have just been written.
        unsafe { left_product(&self.up, folded, OutPointer { data: lines.data.wrapping_add(first), stride }) };
    }

    /// The waves of line `h` to that line of `out` `[n, m, C]`.
    ///
    /// # Safety
    /// `out` points at the places for each channel, of which nobody else uses those of this line.
    pub unsafe fn along(&self, scale: Scale, lines: &[f32], channels: usize, h: usize, out: OutPointer) {
        let ([_, m], [_, l]) = (self.grid, self.kept);
        let length = 2 * l * channels;
        let lines = &lines[h * length..(h + 1) * length];
        let out = OutPointer { data: out.data.wrapping_add(h * m * channels), stride: channels };
        if let Some(fast) = &self.fast[1] {
            // SAFETY: the caller's promise.
            return unsafe { fast.along(lines, channels, |wave| shares(self.grid, wave, scale), out) };
        }
        let lines = Lines { data: lines.as_ptr(), rows: 2 * l, width: channels, stride: channels };
        // SAFETY: the caller's promise.
        unsafe { left_product(&self.tables(scale).synthesise, lines, out) };
    }

    /// The cosine and the sine of wave `wave` across at a place, in an analysis of that scale and, turned, in its synthesis.
    #[cfg(feature = "cuda")]
    pub fn pair_across(&self, scale: Scale, wave: usize, place: usize) -> [f32; 2] {
        let (m, table) = (self.grid[1], &self.tables(scale).analyse);
        [0, 1].map(|part| table[(2 * wave + part) * m + place])
    }

    /// Those of wave `number` down at line `h`.
    #[cfg(feature = "cuda")]
    pub fn pair_down(&self, number: usize, h: usize) -> [f32; 2] {
        let (n, (frequency, sign)) = (self.grid[0], self.frequency(number));
        [self.down[2 * frequency * n + h], sign as f32 * self.down[(2 * frequency + 1) * n + h]]
    }
}

/// What the cosine and the sine of a frequency across count.
pub(super) fn shares([n, m]: [usize; 2], frequency: usize, scale: Scale) -> [f64; 2] {
    let own = frequency == 0 || 2 * frequency == m;
    let cosine = match scale {
        Scale::Mean => 1.0 / (n * m) as f64,
        Scale::Twice if own => 1.0,
        Scale::Twice => 2.0,
    };
    // The imaginary part of the mean, and of the wave that changes its sign from place to place, is dropped.
    [cosine, if own { 0.0 } else { cosine }]
}

fn across([n, m]: [usize; 2], l: usize, scale: Scale) -> Vec<f64> {
    let (mut table, turns) = (Vec::with_capacity(2 * l * m), Turns::new(m));
    for frequency in 0..l {
        let [cosine, sine] = shares([n, m], frequency, scale);
        table.extend((0..m).map(|w| cosine * turns.of(frequency, w)[0]));
        table.extend((0..m).map(|w| -sine * turns.of(frequency, w)[1]));
    }
    table
}

/// `(cos - i sign sin) u` of products of `u` `[2, C]` with cosines and sines.
fn turn(cos: &[f32], sin: &[f32], sign: f32, to: &mut [f32]) {
    let c = cos.len() / 2;
    for i in 0..c {
        to[i] = cos[i] + sign * sin[c + i];
        to[c + i] = cos[c + i] - sign * sin[i];
    }
}

/// `above + below`, and `i (above - below)`, where one that is not kept is 0.
fn fold(above: Option<&[f32]>, below: Option<&[f32]>, cos: &mut [f32], sin: &mut [f32]) {
    let c = cos.len() / 2;
    match (above, below) {
        (Some(above), Some(below)) => {
            for i in 0..c {
                cos[i] = above[i] + below[i];
                cos[c + i] = above[c + i] + below[c + i];
                sin[i] = below[c + i] - above[c + i];
                sin[c + i] = above[i] - below[i];
            }
        }
        (one, other) => {
            let (values, sign) = match (one, other) {
                (Some(above), _) => (above, 1.0),
                (_, Some(below)) => (below, -1.0),
                _ => unreachable!("every frequency down has a wave"),
            };
            for i in 0..c {
                (cos[i], cos[c + i]) = (values[i], values[c + i]);
                (sin[i], sin[c + i]) = (-sign * values[c + i], sign * values[i]);
            }
        }
    }
}
