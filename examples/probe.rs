//! probe
#![allow(clippy::all, clippy::print_stdout)]
use std::time::Instant;
use ampc::onnx::wire::*;
fn main() {
    for path in std::env::args().skip(1) {
        let src = ampc::onnx::bytes::SourceBytes::open(std::path::Path::new(&path)).unwrap();
        let t = Instant::now();
        let mut r = Reader::new(&src);
        let m = ampc::onnx::scan::read_model(&mut r).unwrap();
        let g = ampc::onnx::scan::read_graph(&mut r, m.graph.unwrap().body).unwrap();
        println!("spans {:?}", t.elapsed());
        let mut module = ampc_ir::Module::new();
        let t = Instant::now();
        let mut n = 0;
        for at in &g.nodes { let node = ampc::onnx::node::read_node(&mut r, at.body, &mut |_| {n+=1; ampc_ir::entity::EntityRef::new(0)}).unwrap(); std::hint::black_box(&node); }
        println!("nodes {n} names {:?}", t.elapsed());
        let t = Instant::now();
        for at in &g.nodes { let node = ampc::onnx::node::read_node(&mut r, at.body, &mut |x| module.intern(x)).unwrap(); std::hint::black_box(&node); }
        println!("nodes+intern {:?}", t.elapsed());
        let t = Instant::now();
        match ampc::onnx::read(std::path::Path::new(&path), &Default::default()) {
            Ok((mut m, s, w)) => { let el = t.elapsed(); println!("OK {path} {el:?} nodes {} {}", m.n_nodes(), w.iter().map(|w| w.to_string()).collect::<Vec<_>>().join(" | "));
              let t = Instant::now();
              let out = std::env::temp_dir().join("out.onnx");
              let r = ampc::onnx::write(&m, Some(&s), &out, &ampc::onnx::WriteOptions{force:true, ..Default::default()}).unwrap();
              println!("write identical {:?} {:?}", r, t.elapsed());
              let all: Vec<_> = m.nodes(m.main()).collect();
              for n in all { m.node_mut(n).dirty.operands = true; }
              for c in m.graph(m.main()).constants().to_vec() { if let Some(ampc_ir::Payload::Dense(d)) = m.constant(c) { let d = d.converted(ampc_ir::convert::Conversion{to: ampc_ir::DType::F16, clamp: false}); m.set_constant(c, ampc_ir::Payload::Dense(d.into())); } }
              let t = Instant::now();
              let r = ampc::onnx::write(&m, Some(&s), &out, &ampc::onnx::WriteOptions{force:true, ..Default::default()}).unwrap();
              println!("write dirty {:?} {:?}", r.bytes, t.elapsed());
              let t = Instant::now();
              drop((m, s)); println!("drop {:?}", t.elapsed());
            }
            Err(e) => println!("ERR {path} {:?} {} {e}", t.elapsed(), e.blame().exit_code()),
        }
    }
}
