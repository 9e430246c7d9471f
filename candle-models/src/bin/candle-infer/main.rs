//! The command.
fn main() {
    println!("hi");
}
