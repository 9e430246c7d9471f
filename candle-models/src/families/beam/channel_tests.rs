//! Channels against their definition, their means and bad input.

use super::super::cdl::Profile;
use super::super::codebook::CodebookConfig;
use super::super::complex::squared_norm;
use super::*;
use std::f64::consts::TAU;

fn random() -> Random {
    Random::new(11).stream("channels")
}

fn geometric(change: impl FnOnce(&mut Geometric)) -> ChannelConfig {
    let mut geometric = Geometric::default();
    change(&mut geometric);
    ChannelConfig { model: ChannelModel::Geometric(geometric), ..ChannelConfig::default() }
}

fn cdl(profile: Profile, rays: usize) -> ChannelConfig {
    ChannelConfig { model: ChannelModel::Cdl(Cdl { profile, rays, rotation: 180. }), ..ChannelConfig::default() }
}

/// Configurations that differ in every option.
fn configs() -> Vec<ChannelConfig> {
    let planar = |c: ChannelConfig| ChannelConfig {
        transmit: Array::Planar { rows: 4, columns: 6 },
        receive: Array::Planar { rows: 3, columns: 3 },
        ..c
    };
    let moving = |c: ChannelConfig| ChannelConfig { mobility: Some(Mobility { doppler: 0.05, drift: 0.5 }), ..c };
    vec![
        ChannelConfig::default(),
        geometric(|g| (g.paths, g.normalise) = (1, true)),
        geometric(|g| (g.paths, g.rician_db) = (5, Some(6.))),
        planar(geometric(|g| g.elevation = 45.)),
        moving(planar(geometric(|g| g.azimuth = 60.))),
        moving(cdl(Profile::A, 1)),
        planar(cdl(Profile::D, 20)),
    ]
}

/// Mean of a per-channel quantity and its standard error.
fn mean(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.into_iter().collect();
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.);
    (mean, (variance / n).sqrt())
}

fn assert_mean(values: impl IntoIterator<Item = f64>, expected: f64) {
    let (mean, error) = mean(values);
    assert!((mean - expected).abs() < 5. * error + 1e-4 * expected.abs(), "mean {mean} +- {error}, expected {expected}");
}

fn powers(config: &ChannelConfig, batch: usize) -> Vec<f64> {
    Channels::generate(config, random(), 0, batch, 1).unwrap().power().iter().map(|p| f64::from(*p)).collect()
}

#[test]
fn the_mean_power_is_what_the_configuration_says() {
    assert_mean(powers(&ChannelConfig::default(), 40_000), 1536.);
    assert_mean(powers(&geometric(|g| g.normalise = true), 40_000), 512.);
    assert_mean(powers(&geometric(|g| (g.paths, g.rician_db) = (4, Some(10.))), 40_000), 2048.);
    assert_mean(powers(&geometric(|g| (g.paths, g.rician_db) = (1, Some(10.))), 100), 512.);
    for profile in Profile::ALL {
        assert_mean(powers(&cdl(profile, 1), 4000), 512.);
    }
    assert_mean(powers(&cdl(Profile::B, 20), 200), 512.);
}

#[test]
fn a_profile_has_the_power_of_its_table() {
    for profile in Profile::ALL {
        for rays in [1, 20] {
            let channels = Channels::generate(&cdl(profile, rays), random(), 0, 2, 1).unwrap();
            let clusters = profile.clusters().len();
            assert_eq!(channels.paths(), if profile.line_of_sight() { 1 + (clusters - 1) * rays } else { clusters * rays });
            for b in 0..2 {
                assert!((squared_norm(channels.at(b, 0).gains) - 1.).abs() < 1e-5);
            }
        }
    }
    // The line of sight over the first cluster's other rays: K1 of TR 38.901, 13.3 dB for CDL-D and 22 dB for CDL-E.
    for (profile, k) in [(Profile::D, 13.3), (Profile::E, 22.)] {
        let channels = Channels::generate(&cdl(profile, 1), random(), 0, 1, 1).unwrap();
        let [first, second] = [0, 2].map(|i| squared_norm(&channels.gains()[i..i + 2]));
        assert!((10. * (first / second).log10() - k).abs() < 1e-4);
    }
}

#[test]
fn the_first_rician_path_has_its_share() {
    let channels = Channels::generate(&geometric(|g| g.rician_db = Some(10.)), random(), 0, 20_000, 1).unwrap();
    let gain = |b: usize, l: usize| squared_norm(&channels.at(b, 0).gains[2 * l..2 * l + 2]);
    assert!((0..20_000).all(|b| (gain(b, 0) - 30. / 11.).abs() < 1e-5));
    assert_mean((0..20_000).map(|b| gain(b, 1) + gain(b, 2)), 3. / 11.);
    // A random phase: the mean of the gain itself vanishes.
    for part in 0..2 {
        assert_mean((0..20_000).map(|b| f64::from(channels.at(b, 0).gains[part])), 0.);
    }
}

#[test]
fn everything_by_path_equals_the_matrix() {
    for config in configs() {
        let channels = Channels::generate(&config, random(), 0, 20, 3).unwrap();
        let (n_rx, n_tx) = (config.receive.elements(), config.transmit.elements());
        let codebook = Codebook::generate(&CodebookConfig::Random { count: 3, seed: 1 }, &config.transmit).unwrap();
        let receive = Codebook::generate(&CodebookConfig::Random { count: 3, seed: 2 }, &config.receive).unwrap();
        let responses = channels.responses(&codebook).unwrap();
        for b in 0..20 {
            for s in 0..channels.steps() {
                let link = channels.at(b, s);
                let matrix = link.matrix();
                let close = |found: f64, expected: f64| (found - expected).abs() < 1e-5 * (n_rx * n_tx) as f64;
                assert!(close(f64::from(link.power), squared_norm(&matrix)), "{} {}", link.power, squared_norm(&matrix));
                for c in 0..3 {
                    let (f, w) = (codebook.beam(c), receive.beam(c));
                    let expected: Vec<[f32; 2]> = matrix
                        .chunks_exact(2 * n_tx)
                        .map(|row| {
                            let products = row.chunks_exact(2).zip(f.chunks_exact(2)).map(|(h, f)| product([h[0], h[1]], [f[0], f[1]]));
                            products.fold([0., 0.], |a, b| [a[0] + b[0], a[1] + b[1]])
                        })
                        .collect();
                    let expected = expected.concat();
                    let i = ((b * channels.steps() + s) * 3 + c) * 2 * n_rx;
                    assert!(responses[i..i + 2 * n_rx].iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-3));
                    let measured = inner(w, &expected);
                    assert!(link.measure(w, f).iter().zip(measured).all(|(x, y)| (x - y).abs() < 1e-3));
                    assert!((link.gain(w, f) - measured.iter().map(|x| x * x).sum::<f32>()).abs() < 1e-2);
                    let mut returned = vec![0.; 2 * n_tx];
                    link.returned(w, &mut returned);
                    assert!(inner(&returned, f).iter().zip(measured).all(|(x, y)| (x - y).abs() < 1e-3));
                }
            }
        }
        // The same channels, given as matrices.
        let matrices: Vec<f32> =
            (0..20 * channels.steps()).flat_map(|i| channels.at(i / channels.steps(), i % channels.steps()).matrix()).collect();
        let again = Channels::from_matrices(20, channels.steps(), &config.receive, &config.transmit, &matrices).unwrap();
        let again = again.responses(&codebook).unwrap();
        assert!(responses.iter().zip(&again).all(|(x, y)| (x - y).abs() < 1e-3));
    }
}

#[test]
fn a_channel_depends_on_its_address_only() {
    for config in configs() {
        let whole = Channels::generate(&config, random(), 5, 100, 4).unwrap();
        for (first, batch) in [(5, 1), (40, 33), (104, 1)] {
            let part = Channels::generate(&config, random(), first, batch, 4).unwrap();
            for b in 0..batch {
                for s in 0..4 {
                    let (a, b) = (part.at(b, s), whole.at(b + first as usize - 5, s));
                    assert_eq!((a.gains, a.receive, a.transmit, a.power), (b.gains, b.receive, b.transmit, b.power));
                }
            }
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        assert_eq!(pool.install(|| Channels::generate(&config, random(), 5, 100, 4)).unwrap(), whole);
        assert_ne!(Channels::generate(&config, random().at(1), 5, 100, 4).unwrap(), whole);
        let first_step = Channels::generate(&config, random(), 5, 100, 1).unwrap();
        assert_eq!(first_step.at(7, 0).receive, whole.at(7, 0).receive);
    }
}

/// The gain of one path under Clarke's model: `E[alpha_0* alpha_s] = J0(2 pi doppler s)`.
#[test]
fn gains_turn_as_the_doppler_shift_says() {
    let config = ChannelConfig { mobility: Some(Mobility { doppler: 0.05, drift: 0. }), ..geometric(|g| g.paths = 1) };
    let channels = Channels::generate(&config, random(), 0, 40_000, 16).unwrap();
    for step in [1usize, 4, 8, 15] {
        let x = TAU * 0.05 * step as f64;
        let bessel = (0..1000).map(|i| (x * (TAU * f64::from(i) / 1000.).cos()).cos()).sum::<f64>() / 1000.;
        let coupling = |b: usize| inner_f64(channels.at(b, 0).gains, channels.at(b, step).gains);
        assert_mean((0..40_000).map(|b| coupling(b)[0]), bessel);
        assert_mean((0..40_000).map(|b| coupling(b)[1]), 0.);
        let moved =
            |b: usize| (channels.at(b, 0).receive == channels.at(b, step).receive, channels.at(b, step).power == channels.power()[b * 16]);
        assert!((0..100).all(|b| moved(b).0), "angles stay without drift");
    }
}

#[test]
fn angles_drift_at_a_constant_rate() {
    let config = ChannelConfig { mobility: Some(Mobility { doppler: 0., drift: 0.5 }), ..geometric(|g| (g.paths, g.azimuth) = (1, 30.)) };
    let channels = Channels::generate(&config, random(), 0, 500, 9).unwrap();
    // The phase of element 1 is pi sin(azimuth).
    let azimuth = |b: usize, s: usize| {
        let a = channels.at(b, s).receive;
        (f64::from(a[3]).atan2(f64::from(a[2])) / std::f64::consts::PI).asin().to_degrees()
    };
    for b in 0..500 {
        let rate = azimuth(b, 1) - azimuth(b, 0);
        assert!(rate.abs() <= 0.5 + 1e-4 && (azimuth(b, 8) - azimuth(b, 0) - 8. * rate).abs() < 1e-3);
        assert_eq!(channels.at(b, 0).gains, channels.at(b, 8).gains);
    }
    assert_mean((0..500).map(|b| (azimuth(b, 1) - azimuth(b, 0)).abs()), 0.25);
}

#[test]
fn given_paths_make_the_same_channel() {
    let array = Array::Ula { elements: 4 };
    let given =
        PathParameters { batch: 1, steps: 1, paths: 2, gains: &[1., 0., 0., 0.5], departure: &[0.3, 0., -1., 0.2], arrival: &[0.; 4] };
    let channels = Channels::from_paths(&array, &array, &given).unwrap();
    let mut steering = vec![0.; 8];
    array.steering(f64::from(-1f32), f64::from(0.2f32), &mut steering);
    assert_eq!(channels.at(0, 0).transmit[8..], steering);
    assert!((f64::from(channels.power()[0]) - squared_norm(&channels.at(0, 0).matrix())).abs() < 1e-4);
    let failure = |given: PathParameters| Channels::from_paths(&array, &array, &given).unwrap_err().to_string();
    assert_eq!(failure(PathParameters { paths: 0, ..given }), "config: paths: 0 is outside 1..=1073741824");
    assert_eq!(failure(PathParameters { batch: 2, ..given }), "tensor gains: expected [2, 1, 2, 2], found 4 numbers");
    let arrival = &[0., f32::NAN, 0., 0.];
    assert_eq!(failure(PathParameters { arrival, ..given }), "tensor arrival: expected finite numbers, found NaN at 1");
}

#[test]
fn a_channel_without_power_gives_finite_results() {
    let array = Array::Ula { elements: 4 };
    let given = PathParameters { batch: 1, steps: 1, paths: 1, gains: &[0.; 2], departure: &[0.; 2], arrival: &[0.; 2] };
    let channels = Channels::from_paths(&array, &array, &given).unwrap();
    let beam = [0.5, 0., 0.5, 0., 0.5, 0., 0.5, 0.];
    assert_eq!((channels.power()[0], channels.at(0, 0).gain(&beam, &beam)), (0., 0.));
    // Two paths that cancel: the power is what rounding leaves, never below zero.
    let given =
        PathParameters { paths: 2, gains: &[1., 0., -1., 0.], departure: &[0.7, 0., 0.7, 0.], arrival: &[0.7, 0., 0.7, 0.], ..given };
    let channels = Channels::from_paths(&array, &array, &given).unwrap();
    assert!((0. ..1e-9).contains(&channels.power()[0]));
}

#[test]
fn bad_configurations_name_the_field() {
    let failure = |config: &ChannelConfig| Channels::generate(config, random(), 0, 1, 1).unwrap_err().to_string();
    let moving = |doppler, drift| ChannelConfig { mobility: Some(Mobility { doppler, drift }), ..ChannelConfig::default() };
    for (config, field) in [
        (ChannelConfig { receive: Array::Ula { elements: 1 }, ..ChannelConfig::default() }, "receive.elements"),
        (geometric(|g| g.paths = 0), "model.paths"),
        (geometric(|g| g.paths = 1 << 20), "model.paths"),
        (geometric(|g| g.azimuth = f32::NAN), "model.azimuth"),
        (geometric(|g| g.azimuth = -1.), "model.azimuth"),
        (geometric(|g| g.elevation = 91.), "model.elevation"),
        (geometric(|g| g.rician_db = Some(f32::INFINITY)), "model.rician_db"),
        (cdl(Profile::A, 5), "model.rays"),
        (moving(f32::NAN, 0.), "mobility.doppler"),
        (moving(0., -1.), "mobility.drift"),
    ] {
        let error = failure(&config);
        assert!(error.starts_with(&format!("config: {field}: ")), "{error}");
    }
    let sized = |batch, steps| Channels::generate(&moving(0.1, 0.), random(), 0, batch, steps).unwrap_err().to_string();
    assert!(sized(0, 1).starts_with("config: batch: 0"));
    assert!(sized(1, 0).starts_with("config: steps: 0"));
    assert!(sized(1 << 29, 1 << 29).starts_with("config: batch: 536870912 channels of 536870912 steps"));
    assert!(sized(1 << 20, 16).starts_with("config: batch: 1048576 channels"));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 101.] {
        assert!(noise_deviation(bad).unwrap_err().to_string().starts_with("config: snr_db: "));
    }
    assert!((noise_deviation(10.).unwrap() - 0.05f32.sqrt()).abs() < 1e-7);
    let codebook = Codebook::dft(&Array::Ula { elements: 8 }, 1, 8).unwrap();
    let channels = Channels::generate(&ChannelConfig::default(), random(), 0, 1, 1).unwrap();
    assert_eq!(channels.responses(&codebook).unwrap_err().to_string(), "config: codebook: beams of 8 elements for an array of 32");
}

#[test]
fn configurations_survive_json() {
    for config in configs() {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ChannelConfig>(&text).unwrap(), config, "{text}");
    }
    assert_eq!(serde_json::from_str::<ChannelConfig>("{}").unwrap(), ChannelConfig::default());
    let text = r#"{"model": {"kind": "cdl", "profile": "D"}, "receive": {"kind": "planar", "rows": 2, "columns": 4}}"#;
    let config = serde_json::from_str::<ChannelConfig>(text).unwrap();
    assert_eq!(config.model, ChannelModel::Cdl(Cdl { profile: Profile::D, rays: 1, rotation: 180. }));
    for text in [
        r#"{"path": 3}"#,
        r#"{"model": {"kind": "geometric", "path": 3}}"#,
        r#"{"model": {"kind": "cdl", "profile": "F"}}"#,
        r#"{"model": {"kind": "cdl", "profile": "A", "spread": 1}}"#,
        r#"{"transmit": {"kind": "ula", "elements": 8, "rows": 2}}"#,
        r#"{"mobility": {"doppler": 0.1, "speed": 3}}"#,
    ] {
        assert!(serde_json::from_str::<ChannelConfig>(text).is_err(), "{text}");
    }
}
