//! The committed header is the one that the crate's source gives.

use std::path::Path;

const UPDATE: &str = "CANDLE_UPDATE_HEADER";

#[test]
fn the_header_is_that_of_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    // The file and its modules: for a crate cbindgen would ask cargo, which may want the network.
    let builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/lib.rs"));
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    let path = root.join("include").join("candle_models.h");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let generated = String::from_utf8(generated).unwrap();
    let differing = committed.lines().zip(generated.lines()).position(|(committed, generated)| committed != generated);
    let line = differing.unwrap_or(committed.lines().count().min(generated.lines().count())) + 1;
    assert!(committed == generated, "{}: line {line} is not what the source gives; {UPDATE}=1 writes the header anew", path.display());
}
