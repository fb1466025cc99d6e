//! probe
#![allow(clippy::all, clippy::print_stdout)]
use std::time::Instant;
fn main() {
    for path in std::env::args().skip(1) {
        let t = Instant::now();
        match ampc::onnx::read(std::path::Path::new(&path), &Default::default()) {
            Ok((m, _s, w)) => {
                let el = t.elapsed();
                println!(
                    "OK {path} {el:?} nodes {} {}",
                    m.n_nodes(),
                    w.iter().map(|w| w.to_string()).collect::<Vec<_>>().join(" | ")
                )
            }
            Err(e) => println!("ERR {path} {:?} {} {e}", t.elapsed(), e.blame().exit_code()),
        }
    }
}
