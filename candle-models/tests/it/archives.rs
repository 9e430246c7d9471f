//! Replays in archives: found and read as those of a folder are, whatever the archive is.

use candle_models::policy::{replay, simulation::simulate};
use flate2::{Compression, write::GzEncoder};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use zip::write::{SimpleFileOptions, ZipWriter};

/// What lies in every archive here, by name.
fn members() -> Vec<(String, Vec<u8>)> {
    let game = |seed| replay::to_bytes(&simulate(seed, 40)).unwrap();
    let long = format!("{}/c.SLP", "long".repeat(60));
    let named = [("sub/b.slp".to_owned(), game(2)), ("./a.slp".to_owned(), game(1)), (long, game(3))];
    let others = [("notes.txt", b"no replay".to_vec()), ("__MACOSX/sub/._b.slp", vec![0; 100]), ("broken.slp", vec![7; 1000])];
    named.into_iter().chain(others.map(|(name, bytes)| (name.to_owned(), bytes))).collect()
}

fn zip(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (i, (name, bytes)) in members.iter().enumerate() {
        let method = [zip::CompressionMethod::Deflated, zip::CompressionMethod::Stored][i % 2];
        zip.start_file(name.as_str(), SimpleFileOptions::default().compression_method(method)).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn tar(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    tar.into_inner().unwrap()
}

/// A tar archive of one member with a header as nobody writes it.
fn forged(name: &[u8], kind: tar::EntryType, size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    let mut bytes = [header.as_bytes().as_slice(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(512) + 1024, 0);
    bytes
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn refused(path: &Path) -> String {
    let error = replay::collect([path]).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()) && !error.contains('\n'), "{error}");
    error
}

#[test]
fn the_replays_of_an_archive_are_those_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let members = members();
    for (name, bytes) in
        [("a.zip", zip(&members)), ("b.tar", tar(&members)), ("c.tar.gz", gz(&tar(&members))), ("d.TGZ", gz(&tar(&members)))]
    {
        let archive = write(dir.path(), name, &bytes);
        let found = replay::collect([&archive]).unwrap();
        let expected = ["sub/b.slp", "a.slp", &members[2].0, "broken.slp"].map(|member| archive.join(member));
        assert_eq!(found, expected, "{name}");
        // In any order, some twice.
        for i in [0, 1, 2, 2, 0, 1] {
            assert_eq!(replay::file_of(&found[i]), archive);
            assert_eq!(replay::bytes(&found[i]).unwrap(), members[i].1, "{name}: {}", found[i].display());
            assert_eq!(replay::read(&found[i]).unwrap(), replay::read_bytes(&members[i].1, "x").unwrap());
        }
        // A member may be named, and what is wrong with it is said as of a file.
        assert_eq!(replay::collect([&found[1]]).unwrap(), found[1..2]);
        let error = replay::read(&found[3]).unwrap_err().to_string();
        assert_eq!(error, format!("{}: not a Slippi replay: the signature is missing", found[3].display()));
        let error = replay::read(archive.join("none.slp")).unwrap_err().to_string();
        assert!(error.ends_with("none.slp: no such member of the archive"), "{error}");
    }
    // A folder may be called like an archive.
    let folder = dir.path().join("e.zip");
    fs::create_dir(&folder).unwrap();
    let file = write(&folder, "a.slp", &members[1].1);
    assert_eq!(replay::collect([&folder]).unwrap(), [file.as_path()]);
    assert_eq!(replay::file_of(&file), file);
}

#[test]
fn an_archive_that_changes_is_opened_anew() {
    let dir = tempfile::tempdir().unwrap();
    let members = members();
    let archive = write(dir.path(), "a.zip", &zip(&members[..2]));
    let found = replay::collect([&archive]).unwrap();
    assert_eq!(replay::bytes(&found[0]).unwrap(), members[0].1);
    write(dir.path(), "a.zip", &zip(&[("sub/b.slp".to_owned(), members[2].1.clone())]));
    assert_eq!(replay::bytes(&found[0]).unwrap(), members[2].1);
    assert!(replay::bytes(&found[1]).is_err());
}

#[test]
fn a_member_outside_of_the_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for outside in ["../../x.slp", "/etc/xy.slp", "AA/../x.slp"] {
        let kind = tar::EntryType::Regular;
        for (name, bytes) in
            [("a.tar", forged(outside.as_bytes(), kind, 3, b"abc")), ("a.tgz", gz(&forged(outside.as_bytes(), kind, 3, b"abc")))]
        {
            let error = refused(&write(dir.path(), name, &bytes));
            assert!(error.ends_with(&format!("the member {outside:?} names a place outside of the archive")), "{error}");
        }
        // The name stands twice in a zip archive, and no checksum covers it.
        let placeholder = "B".repeat(outside.len() - 4) + ".slp";
        let mut bytes = zip(&[(placeholder.clone(), vec![1, 2, 3])]);
        while let Some(at) = bytes.windows(placeholder.len()).position(|window| window == placeholder.as_bytes()) {
            bytes[at..at + outside.len()].copy_from_slice(outside.as_bytes());
        }
        let error = refused(&write(dir.path(), "a.zip", &bytes));
        assert!(error.ends_with("names a place outside of the archive"), "{error}");
    }
    // Links are no files, wherever they point.
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link, tar::EntryType::Directory, tar::EntryType::Fifo] {
        let error = refused(&write(dir.path(), "a.tar", &forged(b"x.slp", kind, 0, b"")));
        assert!(error.ends_with("the archive holds no .slp file"), "{error}");
    }
}

#[test]
fn what_unpacks_to_far_more_than_replays_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    // The compressed megabyte again and again: a compressed file may have many parts.
    let header = forged(b"video", tar::EntryType::Regular, 8 << 30, b"");
    let zeros = gz(&vec![0; 1 << 20]);
    let error = refused(&write(dir.path(), "a.tgz", &[gz(&header[..512]), zeros.repeat(1600)].concat()));
    assert!(error.contains("no replays shrink like that"), "{error}");
    // One member that is too large is passed over as a file is; that it is, its header says or its content.
    let large = vec![0; (replay::MAX_BYTES + 1) as usize];
    let archive = write(dir.path(), "b.zip", &zip(&[("large.slp".to_owned(), large), members().remove(0)]));
    let found = replay::collect([&archive]).unwrap();
    let error = replay::bytes(&found[0]).unwrap_err().to_string();
    assert!(
        error.ends_with(&format!("large.slp: {} bytes are too many for a replay (at most {})", replay::MAX_BYTES + 1, replay::MAX_BYTES)),
        "{error}"
    );
    assert!(replay::bytes(&found[1]).is_ok());
    let error = refused(&write(dir.path(), "c.tar", &forged(b"name", tar::EntryType::GNULongName, 1 << 40, b"")));
    assert!(error.ends_with("a name of 1099511627776 bytes"), "{error}");
    let archive = write(dir.path(), "d.tar", &forged(b"x.slp", tar::EntryType::Regular, 1 << 40, b"abc"));
    assert!(replay::bytes(&archive.join("x.slp")).unwrap_err().to_string().contains("too many for a replay"));
}

/// Whatever the bytes are, there is an answer; and what is read is what was written.
#[test]
fn no_damage_to_an_archive_is_a_panic_or_another_replay() {
    let dir = tempfile::tempdir().unwrap();
    let members = vec![("a.slp".to_owned(), vec![1; 700]), ("b.slp".to_owned(), (0..90).collect()), ("c.txt".to_owned(), vec![2; 10])];
    for (name, good) in [("a.zip", zip(&members)), ("a.tar", tar(&members)), ("a.tgz", gz(&tar(&members)))] {
        let path = dir.path().join(name);
        let mut answers = [0, 0];
        let cuts = (0..good.len()).step_by(13).map(|n| good[..n].to_vec());
        let flips = (0..good.len()).step_by(3).map(|i| {
            let mut bytes = good.clone();
            bytes[i] ^= 1 << (i % 8);
            bytes
        });
        for bytes in cuts.chain(flips) {
            fs::write(&path, &bytes).unwrap();
            match replay::collect([&path]) {
                Ok(found) => found.iter().for_each(|member| {
                    let read = replay::bytes(member);
                    answers[usize::from(read.is_err())] += 1;
                    // A tar archive has no checksum of its contents.
                    if let (Ok(read), false) = (read, name == "a.tar") {
                        assert!(members.iter().any(|(_, bytes)| *bytes == read), "{name}");
                    }
                }),
                Err(error) => {
                    assert!(!error.to_string().contains('\n'), "{error}");
                    answers[1] += 1;
                }
            }
        }
        assert!(answers.iter().all(|n| *n > 0), "{name}: {answers:?}");
    }
}
