//! Who holds a code block, by its language.

use crate::{Block, Document, root, shell};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The files whose documentation comments take in documents, so that `cargo test` compiles and runs their Rust.
const DOCTESTS: [&str; 2] = ["candle-models/src/lib.rs", "examples/src/lib.rs"];

/// What a fragment in C stands in: the guide's own functions, which a program brings.
const C: &str = concat!(
    "#include <candle_models.h>\n",
    "int next_frame(float *, uint32_t *);\nvoid press(const uint32_t *);\n",
    "void fragment(void);\nvoid fragment(void) {\n",
);

/// That a block is held by somebody: compiled, run or parsed.
pub fn check(document: &Document, block: &Block) -> Result<(), String> {
    match block.language.as_str() {
        "rust" => rust(document, block),
        "sh" => shell::check_block(&block.text),
        "toml" => toml(&document.path, &block.text),
        "python" => python(block),
        "c" => given(
            "cc",
            &["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-Icandle-c/include", "-xc", "-"],
            &format!("{C}{}}}\n", block.text),
        ),
        "json" => serde_json::Deserializer::from_str(&block.text).into_iter().try_for_each(|value| {
            let value: Result<serde_json::Value, _> = value;
            value.map(drop).map_err(|error| error.to_string())
        }),
        "text" => Ok(()),
        "" => Err("a block without a language: say text where it is none".to_owned()),
        other => Err(format!("nobody compiles, runs or parses a block of {other}")),
    }
}

/// Rust is compiled as a documentation test.
fn rust(document: &Document, block: &Block) -> Result<(), String> {
    let taken_in = format!("include_str!(\"../../{}\")", document.path.display());
    if !DOCTESTS.iter().any(|file| fs::read_to_string(root().join(file)).unwrap().contains(&taken_in)) {
        return Err(format!("none of {DOCTESTS:?} has {taken_in}"));
    }
    if block.attributes.iter().any(|attribute| attribute == "ignore") { Err("ignored by cargo test".to_owned()) } else { Ok(()) }
}

/// TOML is what one of our programs reads, or a part of a manifest.
fn toml(path: &Path, text: &str) -> Result<(), String> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let taken = if table.contains_key("observation") {
        candle_train::agent::config::description(text).map(drop)
    } else if table.contains_key("rollout") {
        candle_train::agent::ppo::config::RunConfig::resolve("classic", Some(text), &[]).map(drop)
    } else if table.contains_key("play") {
        candle_train::muzero::config::RunConfig::resolve("classic", Some(text), &[]).map(drop)
    } else if table.contains_key("task") {
        toml::from_str::<candle_train::rf::config::RunConfig>(text).map_err(|error| error.to_string())?.validate()
    } else if table.contains_key("transposed") {
        toml::from_str::<candle_train::fno::config::RunConfig>(text).map_err(|error| error.to_string())?.validate()
    } else if path.to_string_lossy().starts_with("weights/policy-") {
        candle_train::policy::config::RunConfig::resolve("standard", Some(text), &[]).map(drop)
    } else if path.starts_with("weights") {
        toml::from_str::<candle_train::beam::config::RunConfig>(text).map_err(|error| error.to_string())?.validate()
    } else if table.keys().all(|key| ["dependencies", "features", "lib", "package", "profile"].contains(&key.as_str())) {
        Ok(())
    } else {
        return Err(format!("no program reads the keys {:?}", table.keys().collect::<Vec<_>>()));
    };
    taken.map_err(|error| error.to_string())
}

/// Python is compiled; what needs the wheel or a printed network is also run, by the tests of those.
fn python(block: &Block) -> Result<(), String> {
    let python = std::env::var("CANDLE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if Command::new(&python).arg("--version").output().is_err() {
        assert!(std::env::var_os("CANDLE_REQUIRE_ONNXRUNTIME").is_none(), "no {python}");
        eprintln!("{}: skipped, no {python}", block.place);
        return Ok(());
    }
    given(&python, &["-c", "import sys; compile(sys.stdin.read(), 'block', 'exec')"], &block.text)
}

/// A program at the repository's root that is given a text, and must end well.
fn given(program: &str, arguments: &[&str], text: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root()).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    child.stdin.take().unwrap().write_all(text.as_bytes()).map_err(|error| format!("{program}: {error}"))?;
    let output = child.wait_with_output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn a_block_that_is_not_true_is_found() {
    let check = |path: &str, language: &str, text: &str| {
        let document = Document::new(Path::new(path), &format!("```{language}\n{text}\n```\n"));
        check(&document, &document.blocks()[0])
    };
    for (path, language, text) in [
        ("docs/src/c.md", "c", "candle_model *model;\ncandle_model_lode(\"weights/policy-mlp\", &model);"),
        ("docs/src/python.md", "python", "for frame in range(60)\n    agent.step()"),
        ("docs/src/training.md", "json", "{\"step\": 1,}"),
        ("docs/src/own_agent.md", "toml", "[[observation]]\nname = \"distance\"\nkind = \"floots\"\nshape = [2]"),
        ("docs/src/training.md", "toml", "[trainer]\nlog_every = 10"),
        ("weights/policy-mlp/README.md", "toml", "[trainer]\nlog_evry = 10"),
        ("weights/beam-c3/README.md", "toml", "[episode]\nbatches = 10"),
        ("weights/breakout/README.md", "toml", "[rollout]\nlane = 10"),
        ("weights/tictactoe/README.md", "toml", "[play]\nlane = 10"),
        ("weights/localiser/README.md", "toml", "[task]\nkind = \"localisation\""),
        ("weights/fno-darcy/README.md", "toml", "transposed = true\nepoch = 10"),
        ("docs/src/nothing.md", "rust", "fn main() {}"),
        ("README.md", "rust,ignore", "fn main() {}"),
        ("README.md", "sh", "candle-infer inspekt weights/policy-mlp"),
        ("README.md", "julia", "println(1)"),
        ("README.md", "", "nothing"),
    ] {
        assert!(check(path, language, text).is_err(), "{path}: {language}: {text}");
    }
    assert_eq!(check("weights/policy-mlp/README.md", "toml", "[trainer]\nlog_every = 10"), Ok(()));
    assert_eq!(check("README.md", "rust,no_run", "fn main() {}"), Ok(()));
    assert_eq!(check("docs/src/own_agent.md", "toml", include_str!("../../data/agent.toml")), Ok(()));
}
