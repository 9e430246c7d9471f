//! Between which shares a true one lies, by what was counted.

/// Wilson's interval of a proportion with 95 % confidence: so many of `trials` (Wilson, "Probable inference, the law of succession, and
/// statistical inference", 1927). Without trials it is `[0, 1]`.
pub fn wilson(successes: f64, trials: usize) -> [f64; 2] {
    const Z2: f64 = 1.959_963_984_540_054 * 1.959_963_984_540_054;
    let n = trials as f64;
    let middle = successes + Z2 / 2.0;
    let reach = (Z2 * (successes * (n - successes) / n.max(1.0) + Z2 / 4.0)).sqrt();
    [(middle - reach) / (n + Z2), (middle + reach) / (n + Z2)].map(|x| x.clamp(0.0, 1.0))
}
