use super::*;
use crate::lanes::StepShape;
use crate::parallel::{Communicator, Single, threads};
use candle_models::random::Random;
use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};
use std::time::Duration;

/// What is in the sets: a number with its row, a class and a grid of halves.
fn specs() -> Vec<TensorSpec> {
    vec![TensorSpec::f32("x", &[2]).within(0.0..1e6), TensorSpec::u32("class", &[1]).below(&[7]), TensorSpec::f32("grid", &[2, 2])]
}

/// Rows whose numbers say which they are, from `first` on, shaped `[leading..., ...]`.
fn rows(first: usize, leading: &[usize]) -> NamedTensors {
    let n: usize = leading.iter().product();
    let shape = |own: &[usize]| [leading, own].concat();
    let x: Vec<f32> = (first..first + n).flat_map(|row| [row as f32, 0.5]).collect();
    let class: Vec<i64> = (first..first + n).map(|row| row as i64 % 7).collect();
    let grid: Vec<f32> = (first..first + n).flat_map(|row| [row as f32, 1.0, 2.0, -(row as f32)]).collect();
    let tensors = [
        ("x", Tensor::from_vec(x, shape(&[2]), &Device::Cpu).unwrap()),
        ("class", Tensor::from_vec(class, shape(&[1]), &Device::Cpu).unwrap()),
        ("grid", Tensor::from_vec(grid, shape(&[2, 2]), &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap()),
    ];
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

/// A folder of files of so many rows each, which go on from file to file.
fn folder(lengths: &[usize]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut first = 0;
    for (file, length) in lengths.iter().enumerate() {
        rows(first, &[*length]).save_safetensors(dir.path().join(format!("{file:04}.safetensors"))).unwrap();
        first += length;
    }
    dir
}

fn open(dir: &tempfile::TempDir) -> Arc<Dataset> {
    Arc::new(Dataset::open(dir.path(), &specs()).unwrap())
}

/// The numbers of a batch's rows, checked against everything else that they hold.
fn numbers(tensors: &NamedTensors) -> Vec<usize> {
    let flat = |name: &str| tensors.get(name).unwrap().flatten_all().unwrap();
    let (x, class, grid) =
        (flat("x").to_vec1::<f32>().unwrap(), flat("class").to_vec1::<u32>().unwrap(), flat("grid").to_vec1::<f32>().unwrap());
    let numbers: Vec<usize> = x.chunks(2).map(|pair| pair[0] as usize).collect();
    for (i, number) in numbers.iter().enumerate() {
        let n = *number as f32;
        assert_eq!((x[2 * i + 1], class[i], &grid[4 * i..4 * i + 4]), (0.5, *number as u32 % 7, &[n, 1.0, 2.0, -n][..]));
    }
    numbers
}

#[test]
fn any_rows_are_those_of_the_files() {
    let dir = folder(&[5, 1, 9]);
    fs::write(dir.path().join("notes.txt"), "no tensors").unwrap();
    let data = open(&dir);
    assert_eq!((data.rows(), data.parts().len(), data.parts()[2].name()), (15, 3, "0002.safetensors".to_owned()));
    for range in [0..15, 3..4, 4..7, 5..6, 14..15, 7..7] {
        let tensors = data.tensors(range.clone()).unwrap();
        assert_eq!(tensors.get("grid").unwrap().dims(), [range.len(), 2, 2]);
        assert_eq!(numbers(&tensors), range.collect::<Vec<_>>());
    }
    // One file is a set too, and so are tensors in memory.
    assert_eq!(Dataset::open(dir.path().join("0002.safetensors"), &specs()).unwrap().rows(), 9);
    let memory = rows(0, &[15]).map(|_, t| Ok(t.to_dtype(if t.dtype() == DType::I64 { DType::U32 } else { DType::F32 })?)).unwrap();
    let memory = Dataset::new("memory", &memory, &specs()).unwrap();
    assert_eq!(numbers(&memory.tensors(0..15).unwrap()), numbers(&data.tensors(0..15).unwrap()));
    let error = data.read((0, 0), 4..6, &mut [0f32; 4]).unwrap_err().to_string();
    assert_eq!(error, "tensor x: expected 4 values of F32 for rows 4..6 of 5, found 4 of F32");
    assert!(data.read((0, 0), 0..1, &mut [0u32; 2]).is_err() && data.read((0, 0), 0..1, &mut [0f32; 3]).is_err());
}

#[test]
fn an_epoch_has_every_row_once_and_follows_from_its_address() {
    let dir = folder(&[5, 1, 9, 8]);
    let loader = |seed| Loader::new(open(&dir), Order::Rows(4), Random::new(seed), &Single, &Device::Cpu).unwrap();
    let mut first = loader(1);
    assert_eq!((first.batches_per_epoch(), first.share()), (5, 0..4));
    let batches: Vec<_> = (0..15).map(|number| first.get(number).unwrap()).collect();
    let batch = |number: usize| numbers(&batches[number].tensors);
    for epoch in 0..3 {
        let seen: BTreeSet<usize> = (0..5).flat_map(|step| batch(epoch * 5 + step)).collect();
        assert!(seen.len() == 20 && seen.last() < Some(&23), "20 of 23 rows, each once: {seen:?}");
    }
    assert!(batches.iter().all(|batch| batch.resets == [true; 4] && batch.weight == 1.0));
    assert_ne!(batch(0), batch(5), "another epoch has another order");
    assert_ne!(batch(0), numbers(&loader(2).get(0).unwrap().tensors), "another seed too");
    // Resumed at any batch, the same come.
    for start in [1, 4, 5, 12] {
        let mut resumed = loader(1);
        (start..15).for_each(|number| assert_eq!(numbers(&resumed.get(number as u64).unwrap().tensors), batch(number)));
    }
}

/// What two ranks get of some batches, in the order of ranks, and the whole batches.
fn on_two(data: &Arc<Dataset>, order: Order) -> [Vec<Batch>; 3] {
    let of = |ranks: &dyn Communicator| {
        let mut loader = Loader::new(data.clone(), order, Random::new(3), ranks, &Device::Cpu).unwrap();
        (0..7).map(|number| loader.get(number).unwrap()).collect::<Vec<_>>()
    };
    let mut halves = std::thread::scope(|scope| {
        let ranks = threads::group(2, Duration::from_secs(60));
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || of(&rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let (second, first) = (halves.pop().unwrap(), halves.pop().unwrap());
    [first, second, of(&Single)]
}

#[test]
fn ranks_have_parts_that_together_are_the_batch() {
    let dir = folder(&[40, 13]);
    let data = open(&dir);
    for (order, parts) in [(Order::Rows(5), [2, 3]), (Order::Lanes(StepShape { lanes: 3, unroll: 4 }), [4, 8])] {
        let [first, second, whole] = on_two(&data, order);
        for ((first, second), whole) in first.iter().zip(&second).zip(&whole) {
            let halves = [&first.tensors, &second.tensors].map(numbers);
            assert_eq!(halves.each_ref().map(Vec::len), parts);
            assert_eq!(halves.concat(), numbers(&whole.tensors));
            assert_eq!([&first.resets[..], &second.resets[..]].concat(), whole.resets);
            assert!((first.weight + second.weight - 1.0).abs() < 1e-12);
        }
    }
    let ranks = threads::group(2, Duration::from_secs(60));
    let error = Loader::new(data, Order::Rows(1), Random::new(1), &ranks[0], &Device::Cpu).map(drop).unwrap_err().to_string();
    assert_eq!(error, "config: batch: 1 rows cannot be shared by 2 ranks");
}

#[test]
fn lanes_go_through_episodes_in_order() {
    let dir = tempfile::tempdir().unwrap();
    // Two sequences side by side, and one file of three episodes.
    rows(0, &[2, 11]).save_safetensors(dir.path().join("a.safetensors")).unwrap();
    let mut behind = rows(22, &[20]);
    let begins: Vec<u8> = (0..20).map(|row| u8::from([5, 6].contains(&row))).collect();
    behind.insert("reset", Tensor::from_vec(begins, 20, &Device::Cpu).unwrap());
    behind.insert("reward", Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap());
    behind.save_safetensors(dir.path().join("b.safetensors")).unwrap();
    let data = open(&dir);
    let starts = BTreeSet::from([0, 11, 22, 27, 28]);
    assert_eq!((data.parts()[0].episodes(), data.parts()[1].episodes()), (&[0..11, 11..22][..], &[0..5, 5..6, 6..20][..]));
    assert_eq!((data.parts()[0].unused(), data.parts()[1].unused()), (&[][..], &["reward".to_owned()][..]));
    let shape = StepShape { lanes: 2, unroll: 5 };
    let mut loader = Loader::new(data, Order::Lanes(shape), Random::new(1), &Single, &Device::Cpu).unwrap();
    assert_eq!(loader.batches_per_epoch(), 4);
    let (mut seen, mut last) = (BTreeSet::new(), [usize::MAX; 2]);
    for number in 0..4 {
        let batch = loader.get(number).unwrap();
        assert_eq!(batch.tensors.get("class").unwrap().dims(), [2, 5, 1]);
        for (i, row) in numbers(&batch.tensors).into_iter().enumerate() {
            let lane_starts = number == 0 && i % 5 == 0;
            assert_eq!(batch.resets[i], starts.contains(&row) || lane_starts, "row {row}");
            assert!(batch.resets[i] || row == last[i / 5] + 1, "row {row} behind {}", last[i / 5]);
            assert!(seen.insert(row), "row {row} comes twice");
            last[i / 5] = row;
        }
    }
}

#[test]
fn more_files_than_a_process_may_hold_open() {
    let dir = folder(&[1; OPEN + 20]);
    let data = open(&dir);
    for row in Random::new(1).permutation(data.rows()).into_iter().map(|row| row as usize) {
        assert_eq!(numbers(&data.tensors(row..row + 1).unwrap()), [row]);
    }
    assert_eq!(data.held.lock().unwrap().len(), OPEN);
    assert_eq!(data.contents().unwrap().len(), OPEN + 20);
}

/// A header as a program would write it, and as many bytes of nothing behind it: holes, of which the disk keeps none.
fn sparse(path: &Path, tensors: &str, bytes: u64) -> File {
    let header = format!("{{{tensors}}}");
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).and_then(|()| file.write_all(header.as_bytes())).unwrap();
    file.set_len(8 + header.len() as u64 + bytes).unwrap();
    file
}

#[test]
fn a_set_larger_than_memory_is_read_a_batch_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, width) = (1u64 << 20, 1u64 << 16);
    let bytes = rows * width * 4;
    let mut file = sparse(
        &dir.path().join("a.safetensors"),
        &format!(r#""x":{{"dtype":"F32","shape":[{rows},{width}],"data_offsets":[0,{bytes}]}}"#),
        bytes,
    );
    file.seek(SeekFrom::End(-4)).and_then(|_| file.write_all(&7f32.to_le_bytes())).unwrap();
    let data = Arc::new(Dataset::open(dir.path(), &[TensorSpec::f32("x", &[width as usize])]).unwrap());
    assert_eq!(data.rows(), rows as usize);
    let last = data.tensors(rows as usize - 1..rows as usize).unwrap();
    assert_eq!(last.get("x").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()[width as usize - 1], 7.0);
    let mut loader = Loader::new(data, Order::Rows(3), Random::new(1), &Single, &Device::Cpu).unwrap();
    for number in [0, 200_000, 349_524] {
        assert_eq!(loader.get(number).unwrap().tensors.get("x").unwrap().dims(), [3, width as usize]);
    }
}

/// The message about a set of these files, which each case damages in its way, without the folder.
fn refusal(damage: impl Fn(&Path)) -> String {
    let dir = folder(&[4, 4]);
    damage(&dir.path().join("0001.safetensors"));
    let error = Dataset::open(dir.path(), &specs()).map(drop).unwrap_err().to_string();
    error.replace(dir.path().to_str().unwrap(), "").replacen("/0001.safetensors: ", "", 1)
}

#[test]
fn files_that_are_no_part_of_the_set_are_refused_when_it_is_opened() {
    let with = |name: &'static str, tensor: candle_core::Result<Tensor>| {
        let tensor = tensor.unwrap();
        refusal(move |path| {
            let mut tensors = rows(4, &[4]);
            tensors.insert(name, tensor.clone());
            tensors.save_safetensors(path).unwrap();
        })
    };
    let without = |name: &'static str| {
        refusal(move |path| {
            rows(4, &[4]).into_iter().filter(|(own, _)| own != name).collect::<NamedTensors>().save_safetensors(path).unwrap()
        })
    };
    let cpu = &Device::Cpu;
    assert_eq!(without("x"), "tensor x: expected to be present, found only [class, grid]");
    assert_eq!(without("grid"), "tensor grid: expected to be present, found only [class, x]");
    assert_eq!(with("class", Tensor::zeros((4, 1), DType::F32, cpu)), "tensor class: expected integers [4, 1], found floats [4, 1]");
    assert_eq!(with("grid", Tensor::zeros((4, 2, 2), DType::U8, cpu)), "tensor grid: expected floats [4, 2, 2], found integers [4, 2, 2]");
    assert_eq!(with("grid", Tensor::zeros((4, 4), DType::F32, cpu)), "tensor grid: expected floats [4, 2, 2], found floats [4, 4]");
    assert_eq!(with("x", Tensor::zeros((0, 2), DType::F32, cpu)), "tensor x: expected at least one row, found [0, 2]");
    assert_eq!(with("x", Tensor::zeros(2, DType::F32, cpu)), "tensor x: expected [rows, 2] or [sequences, rows, 2], found [2]");
    assert_eq!(with("reset", Tensor::full(2u8, 4, cpu)), "tensor reset: expected an index up to 1, found 2 in column 0 of row 0");
    // Damaged files, and headers that lie.
    let cut = refusal(|path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(200).unwrap());
    assert!(cut.contains("truncated"), "{cut}");
    assert!(refusal(|path| fs::write(path, "no tensors").unwrap()).contains("not safetensors"));
    let header = |text: &'static str, bytes| refusal(move |path| drop(sparse(path, text, bytes)));
    let beyond = header(r#""x":{"dtype":"F32","shape":[4,2],"data_offsets":[0,64]}"#, 64);
    assert!(beyond.starts_with("header: "), "more bytes than the shape has: {beyond}");
    let overlap =
        header(r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[4],"data_offsets":[4,20]}"#, 20);
    assert!(overlap.starts_with("header: "), "{overlap}");
    let endless = header(r#""x":{"dtype":"F32","shape":[9223372036854775807,9223372036854775807],"data_offsets":[0,8]}"#, 8);
    assert!(endless.starts_with("header: "), "{endless}");
    let wide = header(r#""x":{"dtype":"F64","shape":[4,2],"data_offsets":[0,64]}"#, 64);
    assert_eq!(wide, "tensor x: expected floats [4, 2], found another dtype [4, 2]");
    let dir = tempfile::tempdir().unwrap();
    let error = Dataset::open(dir.path(), &specs()).map(drop).unwrap_err().to_string();
    assert_eq!(error, format!("{}: expected files *.safetensors, found none", dir.path().display()));
}

#[test]
fn values_that_cannot_be_are_refused_when_they_are_read() {
    for (name, values, message) in [
        (
            "x",
            Tensor::new(&[[0f32, 0.0], [0.0, 0.0], [0.0, f32::NAN], [0.0, 0.0]], &Device::Cpu),
            "tensor x: expected finite numbers, found NaN in column 1 of row 2",
        ),
        (
            "x",
            Tensor::new(&[[0f32, 0.0], [0.0, 0.0], [-1.0, 0.0], [0.0, 0.0]], &Device::Cpu),
            "tensor x: expected numbers from 0 to below 1000000, found -1 in column 0 of row 2",
        ),
        (
            "class",
            Tensor::new(&[[0i64], [1], [7], [1]], &Device::Cpu),
            "tensor class: expected an index up to 6, found 7 in column 0 of row 2",
        ),
        (
            "class",
            Tensor::new(&[[0i64], [1], [-1], [1]], &Device::Cpu),
            "tensor class: expected integers from 0 to 2^32 - 1, found -1 in column 0 of row 2",
        ),
    ] {
        let dir = folder(&[4]);
        let path = dir.path().join("0000.safetensors");
        let mut tensors = rows(0, &[4]);
        tensors.insert(name, values.unwrap());
        tensors.save_safetensors(&path).unwrap();
        let data = open(&dir);
        let wanted = format!("{}: {message}", path.display());
        data.tensors(0..2).unwrap();
        for rows in [0..4, 2..3] {
            assert_eq!(data.tensors(rows).unwrap_err().to_string(), wanted);
        }
        assert_eq!(data.contents().unwrap_err().to_string(), wanted);
        let mut loader = Loader::new(data, Order::Rows(4), Random::new(1), &Single, &Device::Cpu).unwrap();
        assert_eq!(loader.get(0).map(drop).unwrap_err().to_string(), wanted);
    }
}

/// What happens to a file.
type Change<'a> = &'a dyn Fn(&Path);

#[test]
fn a_file_that_changes_under_a_run_is_an_error_with_its_name() {
    let cut = |path: &Path| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(300).unwrap();
    let replaced = |path: &Path| {
        rows(100, &[4]).save_safetensors(path).unwrap();
    };
    let written = |path: &Path| {
        let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
        // The clock of the file system's times ticks in milliseconds.
        std::thread::sleep(Duration::from_millis(20));
        file.seek(SeekFrom::End(-8)).and_then(|_| file.write_all(&[0; 8])).unwrap();
    };
    let gone = |path: &Path| fs::remove_file(path).unwrap();
    let cases: [(Change, &str); 4] =
        [(&cut, "has changed"), (&replaced, "has changed"), (&written, "has changed"), (&gone, "No such file")];
    for (change, message) in cases {
        let dir = folder(&[4]);
        let (data, path) = (open(&dir), dir.path().join("0000.safetensors"));
        change(&path);
        let error = data.tensors(0..4).unwrap_err().to_string();
        assert!(error.starts_with(path.to_str().unwrap()) && error.contains(message), "{error}");
    }
    // Also one that is held open.
    let dir = folder(&[4]);
    let data = open(&dir);
    data.tensors(0..1).unwrap();
    cut(&dir.path().join("0000.safetensors"));
    assert!(data.tensors(3..4).unwrap_err().to_string().contains("has changed"));
}

#[test]
fn contents_tell_sets_apart() {
    let [a, b] = [(); 2].map(|()| folder(&[4, 3]));
    let found = open(&a).contents().unwrap();
    assert_eq!(found, open(&b).contents().unwrap());
    assert_ne!(found[0].hash, found[1].hash);
    assert_eq!(found[0].mean_squares[0], (0.0 + 1.0 + 4.0 + 9.0 + 4.0 * 0.25) / 8.0);
    let dir = tempfile::tempdir().unwrap();
    let mut same = rows(0, &[4]);
    same.insert("reset", Tensor::new(&[0u8, 0, 1, 0], &Device::Cpu).unwrap());
    same.save_safetensors(dir.path().join("a.safetensors")).unwrap();
    assert_ne!(open(&dir).contents().unwrap()[0].hash, found[0].hash, "episodes belong to what it is");
}
