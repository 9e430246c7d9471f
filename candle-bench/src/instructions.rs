//! Instructions that hot paths take, counted by valgrind's callgrind: a history that a shared machine cannot blur.
//!
//! Wall time on a machine that others use moves by tens of percent; the instructions of the same program on the same input do not. A table of
//! them is kept in the repository, and a path that needs more than [`TOLERANCE_PERCENT`] above its row is a regression. A count is no time: fewer
//! instructions may wait longer for memory. It says that something changed, and where; how fast it is say the other suites.
//!
//! What is counted is the same everywhere: one thread, fixed inputs and sizes, the AVX2 kernels (valgrind knows no AVX-512, and tells every program
//! the same fixed CPU), the environment cleared. Passes of the engine give the same number to the last digit, on a busy machine too; where hash
//! tables are filled (training, reading files) the standard library's random seed moves it by 0.1%. What fills memory with zeros is not counted: the
//! kernel decides how much of that there is. The matrix product below Candle chooses its blocks by the host's caches where a
//! product has more than 512 terms, and so the one path that uses it, training, has none of these. Counts of another compiler, build profile,
//! architecture or valgrind are not compared.
//!
//! The build is the development profile without incremental compilation, whose kernels are optimised as in a release and which CI's tests have
//! built already: the release profile with its link-time optimisation would cost CI minutes for the same sensitivity. Its
//! assertions and overflow checks are counted too, a constant share.

mod paths;

pub use paths::{Calls, HotPath, engine_calls, paths};

use crate::host;
use anyhow::{Context, Result, bail, ensure};
use candle_models::device;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// By how much a count may lie above or below its row.
pub const TOLERANCE_PERCENT: u64 = 2;
/// The columns of the table.
const COLUMNS: &str = "Path,Instructions,Function,Compiler,Architecture,Profile,Valgrind";
/// Functions that take less than this share of a path (one in so many instructions) have no row.
const LEAST_SHARE: u64 = 200;
/// The instruction set of the kernels that are counted.
const SIMD: &str = "avx2";
/// Variables that a counted program may see: where programs and their libraries are.
const KEPT_VARIABLES: [&str; 5] = ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "VALGRIND_LIB"];

/// What has to be the same for counts to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// `rustc 1.91.0 (f8297e351 2025-10-28)`.
    pub compiler: String,
    /// `x86_64`.
    pub architecture: String,
    /// `debug` or `release`.
    pub profile: String,
    /// `valgrind-3.19.0`.
    pub valgrind: String,
}

impl Build {
    /// Of this program, counted by that valgrind.
    ///
    /// # Errors
    /// If there is no valgrind.
    pub fn here(valgrind: &Path) -> Result<Self> {
        let missing = || format!("{}: cannot be started (Debian and Ubuntu: apt-get install valgrind)", valgrind.display());
        let output = Command::new(valgrind).arg("--version").output().with_context(missing)?;
        ensure!(output.status.success(), "{}: --version failed", valgrind.display());
        Ok(Self {
            compiler: env!("CANDLE_BENCH_RUSTC").to_owned(),
            architecture: std::env::consts::ARCH.to_owned(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            valgrind: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        })
    }

    fn fields(&self) -> [(&'static str, &str); 4] {
        [("compiler", &self.compiler), ("architecture", &self.architecture), ("profile", &self.profile), ("valgrind", &self.valgrind)]
    }

    /// In what another build differs, in words; nothing where counts can be compared.
    pub fn differs(&self, now: &Self) -> Vec<String> {
        let pairs = self.fields().into_iter().zip(now.fields());
        let different = pairs.filter(|((_, before), (_, now))| before != now);
        different.map(|((field, before), (_, now))| format!("{field} {before} in the table, {now} here")).collect()
    }
}

/// Instructions of one call of a path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Count {
    /// All of them.
    pub total: u64,
    /// Those of the functions that take most, without the functions that they call. What the compiler inlined counts where it was inlined.
    pub functions: BTreeMap<String, u64>,
}

/// Instructions of a call by path, of one build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What was counted.
    pub build: Build,
    /// Instructions of one call.
    pub counts: BTreeMap<String, Count>,
}

impl Table {
    /// Counts those paths with this program, `program` being its file; `seen` is called after each.
    pub fn count(paths: &[HotPath], program: &Path, valgrind: &Path, mut seen: impl FnMut(HotPath, u64)) -> Result<Self> {
        let build = Build::here(valgrind)?;
        let mut counts = BTreeMap::new();
        for &path in paths {
            let count = count(path, program, valgrind).with_context(|| path.name)?;
            seen(path, count.total);
            counts.insert(path.name.to_owned(), count);
        }
        Ok(Self { build, counts })
    }

    /// Reads a table.
    ///
    /// # Errors
    /// For a file that is no such table, with the line at fault.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().zip(1..);
        ensure!(lines.next().is_some_and(|(header, _)| header == COLUMNS), "line 1: expected the columns {COLUMNS}");
        let (mut builds, mut counts) = (Vec::new(), BTreeMap::<String, Count>::new());
        for (line, number) in lines {
            let cells: Vec<&str> = line.split(',').collect();
            let [path, instructions, function, compiler, architecture, profile, valgrind] = cells[..] else {
                bail!("line {number}: expected 7 cells, found {}", cells.len());
            };
            let instructions: u64 =
                instructions.parse().ok().filter(|&n| n > 0).with_context(|| format!("line {number}: {instructions} is no count"))?;
            let count = counts.entry(path.to_owned()).or_default();
            let before = match function {
                "" => std::mem::replace(&mut count.total, instructions),
                function => count.functions.insert(function.to_owned(), instructions).unwrap_or(0),
            };
            ensure!(before == 0, "line {number}: {path} {function} stands there twice");
            let [compiler, architecture, profile, valgrind] = [compiler, architecture, profile, valgrind].map(str::to_owned);
            builds.push(Build { compiler, architecture, profile, valgrind });
        }
        if let Some((path, _)) = counts.iter().find(|(_, count)| count.total == 0) {
            bail!("{path}: functions and no total");
        }
        let build = builds.first().cloned().context("no rows")?;
        ensure!(builds.iter().all(|b| *b == build), "rows of several builds: they were not counted together");
        Ok(Self { build, counts })
    }

    /// The table as it is kept.
    pub fn text(&self) -> String {
        let build = self.build.fields().map(|(_, value)| value.replace(',', " ")).join(",");
        let mut text = format!("{COLUMNS}\n");
        for (path, Count { total, functions }) in &self.counts {
            for (function, instructions) in std::iter::once((&String::new(), total)).chain(functions) {
                // Writing into a String does not fail.
                let _ = writeln!(text, "{path},{instructions},{function},{build}");
            }
        }
        text
    }

    /// How the counts of now stand to these.
    ///
    /// # Errors
    /// If a path stands in one of the two only.
    pub fn changes(&self, now: &Self) -> Result<Vec<Change>> {
        if let Some(path) = self.counts.keys().find(|path| !now.counts.contains_key(*path)) {
            bail!("{path}: in the table, and no such path is counted");
        }
        let change = |(path, now): (&String, &Count)| -> Result<Change> {
            let before = self.counts.get(path).with_context(|| format!("{path}: counted, and not in the table"))?;
            Ok(Change { path: path.clone(), before: before.total, now: now.total, functions: moved(before, now) })
        };
        now.counts.iter().map(change).collect()
    }
}

/// A path's count in the table and now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The path.
    pub path: String,
    /// Instructions of a call in the table.
    pub before: u64,
    /// Now.
    pub now: u64,
    /// The functions whose instructions changed by at least a two-hundredth of the path's, with the change, the largest first.
    pub functions: Vec<(String, i64)>,
}

/// [`Change::functions`].
fn moved(before: &Count, now: &Count) -> Vec<(String, i64)> {
    let names: BTreeSet<&String> = before.functions.keys().chain(now.functions.keys()).collect();
    let of = |count: &Count, name: &String| count.functions.get(name).map_or(0, |&n| n as i64);
    let changes = names.into_iter().map(|name| (name.clone(), of(now, name) - of(before, name)));
    let mut changes: Vec<_> = changes.filter(|(_, change)| change.unsigned_abs() >= (before.total / LEAST_SHARE).max(1)).collect();
    changes.sort_by_key(|(_, change)| std::cmp::Reverse(change.unsigned_abs()));
    changes
}

/// What a change means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Within [`TOLERANCE_PERCENT`] of the table.
    Unchanged,
    /// A regression.
    More,
    /// A gain that the table does not know yet, and that could be lost again unseen.
    Fewer,
}

impl Change {
    /// The change as a share of the table's count: 0.02 is 2% more.
    pub fn share(&self) -> f64 {
        self.now as f64 / self.before as f64 - 1.0
    }

    /// What it means.
    pub fn verdict(&self) -> Verdict {
        if 100 * u128::from(self.now.abs_diff(self.before)) <= u128::from(TOLERANCE_PERCENT) * u128::from(self.before) {
            return Verdict::Unchanged;
        }
        if self.now > self.before { Verdict::More } else { Verdict::Fewer }
    }
}

/// Counts one path in a process of its own.
fn count(path: HotPath, program: &Path, valgrind: &Path) -> Result<Count> {
    let scratch = tempfile::tempdir().context("no directory for the counts")?;
    let out = scratch.path().join("callgrind.out");
    let mut command = Command::new(valgrind);
    command
        .arg("--tool=callgrind")
        .arg(format!("--toggle-collect=*{}*", paths::COUNTED))
        .arg(format!("--callgrind-out-file={}", out.display()));
    let counted = host::start(program, "counted-path");
    command.arg(program).args(counted.get_args()).arg(path.name).env_clear();
    command.envs(KEPT_VARIABLES.iter().filter_map(|&name| Some((name, std::env::var_os(name)?))));
    command.env(device::SIMD_VARIABLE, SIMD);
    let output = command.output().with_context(|| format!("{}: cannot be started", valgrind.display()))?;
    ensure!(output.status.success(), "it failed under valgrind: {}", String::from_utf8_lossy(&output.stderr).trim());
    let text = std::fs::read_to_string(&out).context("callgrind wrote no counts")?;
    let functions = functions_of(&text);
    let zeroed: u64 = functions.iter().filter(|(name, _)| is_zeroing(name)).map(|(_, n)| n).sum();
    let total = total_of(&text)?.saturating_sub(zeroed);
    ensure!(total > 0, "nothing was counted: does this program have its symbols?");
    let functions = functions.into_iter().filter(|&(ref name, n)| n >= total / LEAST_SHARE && n >= path.calls && !is_zeroing(name));
    Ok(Count { total: total / path.calls, functions: functions.map(|(name, n)| (name, n / path.calls)).collect() })
}

/// Whether a function fills memory. Fresh memory comes as zeros from the kernel, used memory does not, and which of both an allocation gets depends on the
/// kernel: on one machine a training step had 2.7% more instructions than on another, all of them there.
fn is_zeroing(function: &str) -> bool {
    function.contains("memset")
}

/// The instructions of a file that callgrind wrote.
fn total_of(text: &str) -> Result<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).context("callgrind's file has no totals")?;
    total.trim().parse().with_context(|| format!("callgrind's total {total} is no count"))
}

/// The instructions of every function, without those that it calls, from a file that callgrind wrote. There a function is `fn=(number) name`, later
/// `fn=(number)`; each line that begins with a place, a number or a distance from the last one, adds instructions to it, but for the line behind
/// `calls=`, which has those of the function that is called.
fn functions_of(text: &str) -> BTreeMap<String, u64> {
    let (mut names, mut counts) = (HashMap::<&str, String>::new(), BTreeMap::new());
    let (mut function, mut is_of_a_call) = (String::new(), false);
    for line in text.lines() {
        if let Some(named) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            let (number, name) = named.split_once(' ').unwrap_or((named, ""));
            if !name.is_empty() {
                names.insert(number, readable(name));
            }
            if line.starts_with("fn=") {
                function = names.get(number).cloned().unwrap_or_default();
            }
        } else if line.starts_with("calls=") {
            is_of_a_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let instructions: u64 = line.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
            if !std::mem::replace(&mut is_of_a_call, false) {
                *counts.entry(function.clone()).or_default() += instructions;
            }
        }
    }
    counts
}

/// A function's name without the compiler's hash and callgrind's mark of a recursion, and without commas, which separate cells.
fn readable(name: &str) -> String {
    let name = name.split_once('\'').map_or(name, |(name, _)| name);
    let hashed = name.rsplit_once("::h").filter(|(_, hash)| hash.len() == 16 && hash.chars().all(|c| c.is_ascii_hexdigit()));
    hashed.map_or(name, |(name, _)| name).replace(", ", ";").replace(',', ";")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(counts: &[(&str, u64)]) -> Table {
        let [compiler, architecture, profile, valgrind] = ["rustc 1.91.0", "x86_64", "debug", "valgrind-3.19.0"].map(str::to_owned);
        let build = Build { compiler, architecture, profile, valgrind };
        let count = |total| Count { total, functions: BTreeMap::from([("f<A;B>".to_owned(), total)]) };
        Table { build, counts: counts.iter().map(|(path, n)| ((*path).to_owned(), count(*n))).collect() }
    }

    #[test]
    fn a_table_comes_back_as_it_was_written() {
        let written = table(&[("mlp-step-f32", 123_456), ("replay", 7)]);
        assert_eq!(Table::parse(&written.text()).unwrap(), written);
        let text = written.text();
        assert!(text.contains("\nreplay,7,,rustc 1.91.0,x86_64,debug,valgrind-3.19.0\nreplay,7,f<A;B>,rustc"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_table_is_refused_with_its_line() {
        let refused = |text: &str| Table::parse(text).unwrap_err().to_string();
        let good = table(&[("replay", 7)]).text();
        assert!(refused("").starts_with("line 1: expected the columns Path,"));
        assert_eq!(refused(COLUMNS), "no rows");
        assert_eq!(refused(&good.replace(",debug", "")), "line 2: expected 7 cells, found 6");
        assert_eq!(refused(&good.replace(",7,", ",seven,")), "line 2: seven is no count");
        assert_eq!(refused(&good.replace(",7,", ",0,")), "line 2: 0 is no count");
        let row = good.lines().nth(1).unwrap();
        assert_eq!(refused(&format!("{good}{row}\n")), "line 4: replay  stands there twice");
        assert_eq!(refused(&good.replace(&format!("{row}\n"), "")), "replay: functions and no total");
        let other = row.replace("replay", "bundle").replace("debug", "release");
        assert!(refused(&format!("{good}{other}\n")).starts_with("rows of several builds"));
    }

    #[test]
    fn two_percent_either_way_is_unchanged() {
        let before = table(&[("a", 1000), ("b", 1000), ("c", 1000), ("d", 1000)]);
        let changes = before.changes(&table(&[("a", 1020), ("b", 1021), ("c", 980), ("d", 979)])).unwrap();
        let verdicts: Vec<Verdict> = changes.iter().map(Change::verdict).collect();
        assert_eq!(verdicts, [Verdict::Unchanged, Verdict::More, Verdict::Unchanged, Verdict::Fewer]);
        assert_eq!((changes[1].path.as_str(), changes[1].share()), ("b", 1021.0 / 1000.0 - 1.0));
    }

    #[test]
    fn the_functions_that_grew_are_named() {
        let count = |functions: &[(&str, u64)]| Count {
            total: functions.iter().map(|(_, n)| n).sum(),
            functions: functions.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        };
        let (before, now) = (count(&[("same", 800), ("gone", 100), ("noise", 100)]), count(&[("same", 1000), ("new", 50), ("noise", 102)]));
        let named = [("same", 200), ("gone", -100), ("new", 50)].map(|(name, change)| (name.to_owned(), change));
        assert_eq!(moved(&before, &now), named);
    }

    #[test]
    fn a_path_of_one_side_is_an_error() {
        let (one, two) = (table(&[("a", 1)]), table(&[("a", 1), ("b", 1)]));
        assert_eq!(two.changes(&one).unwrap_err().to_string(), "b: in the table, and no such path is counted");
        assert_eq!(one.changes(&two).unwrap_err().to_string(), "b: counted, and not in the table");
    }

    #[test]
    fn another_compiler_is_not_compared() {
        let (before, mut now) = (table(&[]).build, table(&[]).build);
        assert!(before.differs(&now).is_empty());
        now.compiler = "rustc 1.92.0".to_owned();
        assert_eq!(before.differs(&now), ["compiler rustc 1.91.0 in the table, rustc 1.92.0 here"]);
        assert!(env!("CANDLE_BENCH_RUSTC").starts_with("rustc "), "{}", env!("CANDLE_BENCH_RUSTC"));
    }

    #[test]
    fn callgrind_says_its_total_and_that_of_every_function() {
        let text = "version: 1\nevents: Ir\nsummary: 99\n\nfn=(1) f\n1 40\n+2 5\nfi=(2) inlined.rs\n* 1\ncfn=(2) a::g<X, Y>::h0123456789abcdef\ncalls=1 7\n+1 900\n\nfn=(2)\n9 900\n\nfn=(1)\n3 4\n\ntotals: 41234567890\n";
        let functions = [("a::g<X;Y>", 900), ("f", 50)].map(|(name, n)| (name.to_owned(), n));
        assert_eq!(functions_of(text), BTreeMap::from(functions));
        assert_eq!(total_of(text).unwrap(), 41_234_567_890);
        assert!(total_of("events: Ir\n").is_err() && total_of("totals: many\n").is_err());
    }

    #[test]
    fn without_valgrind_the_answer_says_how_to_get_it() {
        let error = Build::here(Path::new("/nowhere/valgrind")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/valgrind") && error.contains("install valgrind"), "{error}");
    }
}
