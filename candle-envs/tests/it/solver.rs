//! Players of Connect Four beside a perfect solver.

use candle_envs::board::{ConnectFour, Solver, TestSet};

/// A move is a mistake exactly where it loses value.
#[test]
fn mistakes_are_moves_that_lose_value() {
    let folder = std::env::temp_dir().join(format!("candle-envs-solver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("set");
    // Three on top of each other are to be stopped; two with both sides open win in two moves; a draw that some moves lose.
    std::fs::write(&file, "12121 1\n4455 18\n1213 0\n").unwrap();
    let set = TestSet::read(&file).unwrap();
    let mut solver = Solver::new();
    for (board, score) in &set.positions {
        assert_eq!(solver.score(board).unwrap(), *score);
    }
    let mut mistakes = |column: u32| {
        let mut player = |boards: &[ConnectFour]| Ok(vec![column; boards.len()]);
        set.mistakes(&mut player, &mut solver).unwrap()
    };
    assert_eq!([mistakes(0), mistakes(2), mistakes(3), mistakes(6)], [1, 1, 1, 3]);
    for text in ["44", "4x 1", "44 a", "4444444 1"] {
        std::fs::write(&file, format!("44 1\n{text}\n")).unwrap();
        let said = TestSet::read(&file).unwrap_err().to_string();
        assert!(said.contains("line 2"), "{said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(solver.score(&"1212121".parse().unwrap()).is_err());
}
