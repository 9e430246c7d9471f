//! The tools on recordings, whole and damaged.

use super::*;
use crate::bundle::{self, Manifest};
use crate::nn::Params;
use crate::random::Random;
use crate::rf::features::{COUNT, Form};
use crate::rf::sigmf::{Capture, Datatype, Meta, Writer};
use crate::rf::synthesis::{Compatible, Reception};
use crate::rf::{ClassifierConfig, Complex32, Complex64, RfConfig};
use candle_core::Device;
use parquet::file::reader::SerializedFileReader;
use safetensors::SafeTensors;
use std::fs;

/// A second and a half of a carrier at 20 kHz, with echoes, fading and noise.
fn recording(folder: &Path) -> PathBuf {
    let generator = Compatible { samples: 300_000, ..Compatible::default() };
    let mut iq = vec![Complex32::default(); 300_000];
    let reception = Reception { frequency_offset_hz: 20_000.0, power_dbm: -70.0, snr_db: 20.0 };
    generator.generate(Random::new(1), &reception, &mut iq).unwrap();
    let path = folder.join("carrier");
    let mut meta = Meta::new(Datatype::CF32, 200e3);
    meta.captures.push(Capture { frequency: Some(145e6), ..Capture::default() });
    let mut writer = Writer::create(&path, meta).unwrap();
    writer.write(&iq).unwrap();
    writer.finish().unwrap();
    path
}

fn spectrum(recording: &Path, out: Option<PathBuf>) -> Result<()> {
    let options = ["spectrum".to_owned(), recording.display().to_string()];
    let out = out.into_iter().flat_map(|out| ["--out".to_owned(), out.display().to_string()]);
    let matches = RfFamily.tools(Command::new("rf")).unwrap().try_get_matches_from(["rf".to_owned()].into_iter().chain(options).chain(out));
    RfFamily.use_tool(&matches.unwrap())
}

#[test]
fn a_spectrum_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording(folder.path());
    let [svg, png] = ["x.svg", "x.png"].map(|name| folder.path().join(name));
    spectrum(&recording, Some(svg.clone())).unwrap();
    spectrum(&recording, Some(png.clone())).unwrap();
    let text = fs::read_to_string(svg).unwrap();
    assert!(text.starts_with("<svg") && text.contains("kHz from 145 MHz") && text.contains("data:image/png;base64,"), "{}", &text[..300]);
    let decoder = png::Decoder::new(std::io::Cursor::new(fs::read(png).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    // The carrier's row is the brightest: at 20 of -100 to 100 kHz.
    let brightness =
        |row: u32| pixels[(row * info.width * 3) as usize..][..(info.width * 3) as usize].iter().map(|x| u64::from(*x)).sum::<u64>();
    let brightest = (0..info.height).max_by_key(|row| brightness(*row)).unwrap();
    let share = 1.0 - (f64::from(brightest) + 0.5) / f64::from(info.height);
    assert!((share - 0.6).abs() < 0.01, "{share}");
    assert!(spectrum(&recording, Some(folder.path().join("x.bmp"))).unwrap_err().to_string().contains(".svg or .png"));
}

#[test]
fn features_are_written_for_every_whole_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording(folder.path());
    let (csv, tensors) = (folder.path().join("f.csv"), folder.path().join("f.safetensors"));
    features::write(&recording, &csv, Form::Repaired).unwrap();
    features::write(&recording, &tensors, Form::Repaired).unwrap();
    let (text, bytes) = (fs::read_to_string(csv).unwrap(), fs::read(tensors).unwrap());
    let lines: Vec<Vec<f64>> = text.lines().skip(1).map(|line| line.split(',').map(|x| x.parse().unwrap()).collect()).collect();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let values = |name: &str| {
        tensors.tensor(name).unwrap().data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!((lines.len(), tensors.tensor("features").unwrap().shape()), (7, &[7, COUNT][..]));
    assert_eq!(tensors.tensor("summaries").unwrap().shape(), [2, COUNT, 4]);
    let (features, seconds, summaries) = (values("features"), values("seconds"), values("summaries"));
    for (i, line) in lines.iter().enumerate() {
        assert_eq!((line[0], line[1], &line[2..]), (i as f64, seconds[i], &features[i * COUNT..][..COUNT]));
        assert!((line[5] - 20_000.0).abs() < 1.0, "{}", line[5]);
    }
    let parquet = folder.path().join("f.parquet");
    features::write(&recording, &parquet, Form::Repaired).unwrap();
    let rows = SerializedFileReader::new(fs::File::open(parquet).unwrap()).unwrap().into_iter().map(Result::unwrap);
    for (row, line) in rows.zip(&lines) {
        let values = row.get_column_iter().map(|(_, value)| value.to_string().parse::<f64>().unwrap());
        assert_eq!(values.collect::<Vec<_>>(), *line);
    }
    let mean = features.chunks_exact(COUNT).take(5).map(|chunk| chunk[0]).sum::<f64>() / 5.0;
    assert!((summaries[0] - mean).abs() < 1e-9);
}

/// An untrained classifier takes each piece for something, silence for nothing, and another network is no classifier.
#[test]
fn pieces_of_a_recording_are_classified() {
    let folder = tempfile::tempdir().unwrap();
    let recording = recording(folder.path());
    let save = |name: &str, config: &RfConfig| {
        let params = Params::init(Random::new(3), &Device::Cpu);
        config.networks(&params).unwrap();
        let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
        let path = folder.path().join(name);
        bundle::save(&path, &Manifest::new("rf", config).unwrap(), &tensors, serde_json::Value::Null, &[]).unwrap();
        path
    };
    let config = ClassifierConfig { channels: 8, blocks: 2, ..ClassifierConfig::new(["a", "b", "c"]) };
    let (loaded, mut runner) = classify::load(&save("classifier", &RfConfig::Classifier(config.clone()))).unwrap();
    assert_eq!(loaded, config);
    // More than a batch and a part of one.
    let said = classify::classify(&open(&recording).unwrap(), &config, &mut runner, (150, None)).unwrap();
    assert!(said.counts.iter().sum::<usize>() == 150 && (said.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{said:?}");
    let other = save("localiser", &RfConfig::Localiser(crate::rf::LocaliserConfig::default()));
    assert!(classify::load(&other).err().unwrap().to_string().contains("expected a classifier"));
    let silent = folder.path().join("silent");
    let mut writer = Writer::create(&silent, Meta::new(Datatype::CI16, 1000.0)).unwrap();
    writer.write(&[Complex32::default(); 300]).unwrap();
    writer.finish().unwrap();
    let error = classify::classify(&open(&silent).unwrap(), &config, &mut runner, (9, None)).unwrap_err().to_string();
    assert!(error.contains("all of its samples are 0"), "{error}");
}

#[test]
fn what_cannot_be_read_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let silent = folder.path().join("silent");
    let mut writer = Writer::create(&silent, Meta::new(Datatype::CI16, 1000.0)).unwrap();
    writer.write(&[Complex32::new(0.5, 0.0); 400]).unwrap();
    writer.write(&[Complex32::default(); 250]).unwrap();
    writer.finish().unwrap();
    let out = folder.path().join("f.csv");
    let error = features::write(&silent, &out, Form::Repaired).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("chunk 2 from sample 400 on: a chunk: all of its samples are 0"), "{error}");
    assert!(!out.exists());
    // As published, silence has features.
    features::write(&silent, &out, Form::Compatible).unwrap();
    assert!(
        features::write(&silent, &folder.path().join("f.xls"), Form::Repaired)
            .unwrap_err()
            .to_string()
            .contains(".safetensors, .parquet or .csv")
    );
    let json = fs::read_to_string(folder.path().join("silent.sigmf-meta")).unwrap();
    fs::write(folder.path().join("silent.sigmf-meta"), json.replace("\"core:sample_rate\": 1000.0,", "")).unwrap();
    for result in [spectrum(&silent, None), features::write(&silent, &out, Form::Compatible)] {
        assert!(format!("{:#}", result.unwrap_err()).contains("global.core:sample_rate: it is not said, and is needed"));
    }
}

/// A real signal has one side.
#[test]
fn a_real_recording_has_positive_frequencies() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..20_000).flat_map(|n| ((Complex64::cis(0.5 * f64::from(n)).re * 20_000.0) as i16).to_le_bytes()).collect();
    fs::write(folder.path().join("a.sigmf-data"), bytes).unwrap();
    let meta = r#"{"global": {"core:datatype": "ri16_le", "core:version": "1.2.6", "core:sample_rate": 48000}, "captures": [], "annotations": []}"#;
    fs::write(folder.path().join("a.sigmf-meta"), meta).unwrap();
    let out = folder.path().join("a.svg");
    spectrum(&folder.path().join("a"), Some(out.clone())).unwrap();
    assert!(!fs::read_to_string(out).unwrap().contains(">-5<"));
}
