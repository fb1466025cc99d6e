//! How long a minimum cut takes, and how much memory, at growing numbers of vertices.
//!
//! `cargo bench --bench cut` prints a table. Every row is a process of its own, so that its peak memory (VmHWM
//! of Linux) is its own; `cargo bench --bench cut -- FAMILY VERTICES` runs one, with `plain` behind it one
//! without reductions. Outside of a benchmark run, the sizes stop at the smallest.
//!
//! Seconds are those of the processor, where Linux tells them, so that what else runs on the machine counts less.
//!
//! The first four families are near what models give. `grid` and `ladder` are hard: their flow goes far, and the larger
//! ones stop at the default budget.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    reason = "a benchmark prints, fails by panicking, and is small enough to count in any integer"
)]

use ampc_passes::cut::{DEFAULT_BUDGET, Label, Problem, SolveOptions, Vertex};
use std::process::Command;
use std::time::Instant;

const SIZES: [u32; 4] = [10_000, 50_000, 200_000, 1_000_000];

/// A name, and what makes a problem with so many vertices.
type Family = (&'static str, fn(u32) -> Problem);

const FAMILIES: [Family; 6] = [
    ("blocks", blocks),
    ("dag", dag),
    ("chains", chains),
    ("noise", noise),
    ("grid", grid),
    ("ladder", ladder),
];

fn main() {
    let (options, arguments): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let sizes = if options.iter().any(|option| option == "--bench") { &SIZES[..] } else { &SIZES[..1] };
    match &arguments[..] {
        [] => table("", sizes),
        [only] => table(only, sizes),
        [family, count, rest @ ..] => measure(family, count.parse().unwrap(), rest.is_empty()),
    }
}

fn table(only: &str, sizes: &[u32]) {
    println!("| family | vertices | build s | solve s | check s | peak MB | visits M | optimal | gap |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for (family, _) in FAMILIES.iter().filter(|(family, _)| family.contains(only)) {
        for size in sizes {
            let program = std::env::current_exe().unwrap();
            let row = Command::new(program).args([family, size.to_string().as_str()]).output().unwrap();
            print!("{}", String::from_utf8(row.stdout).unwrap());
            assert!(row.status.success(), "{}", String::from_utf8_lossy(&row.stderr));
        }
    }
}

fn measure(family: &str, vertices: u32, reduce: bool) {
    let (_, generate) = FAMILIES.iter().find(|(name, _)| *name == family).unwrap();
    let clock = Clock::new();
    let problem = generate(vertices);
    let build = clock.seconds();
    let clock = Clock::new();
    let solution = problem.solve_with(&SolveOptions { budget: DEFAULT_BUDGET, reduce }).unwrap();
    let solve = clock.seconds();
    let clock = Clock::new();
    let bound = solution.certificate.lower_bound(&problem).unwrap();
    assert_eq!(bound, solution.lower_bound);
    if solution.optimal {
        solution.certificate.check(&problem, &solution.labels).unwrap();
    }
    let check = clock.seconds();
    let gap = (solution.cost - bound) as f64 / solution.cost.max(1) as f64;
    println!(
        "| {family} | {vertices} | {build:.2} | {solve:.2} | {check:.2} | {} | {:.0} | {} | {:.1} % |",
        peak_megabytes().map_or("?".to_owned(), |mb| mb.to_string()),
        solution.visits as f64 / 1e6,
        if solution.optimal { "yes" } else { "no" },
        100.0 * gap,
    );
}

/// Time of the processor, else time that passes.
struct Clock {
    start: Instant,
    processor: Option<f64>,
}

impl Clock {
    fn new() -> Clock {
        Clock { start: Instant::now(), processor: processor_seconds() }
    }

    fn seconds(&self) -> f64 {
        match (self.processor, processor_seconds()) {
            (Some(before), Some(now)) => now - before,
            _ => self.start.elapsed().as_secs_f64(),
        }
    }
}

fn processor_seconds() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    let nanoseconds: u64 = status.split_whitespace().next()?.parse().ok()?;
    (nanoseconds > 0).then(|| nanoseconds as f64 / 1e9)
}

fn peak_megabytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? / 1024)
}

/// A generator of the kind xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % end
    }

    fn cost(&mut self, end: u32) -> i64 {
        i64::from(1 + self.below(end))
    }
}

/// Kind of a vertex of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Low,
    Full,
    Clear,
    Infer,
}

/// Transformer blocks: islands of full normalisations and softmaxes, low products, and what is between.
fn blocks(vertices: u32) -> Problem {
    use Op::{Clear, Full, Infer, Low};
    // Each vertex: its kind, and how far back those are that it reads.
    const BLOCK: [(Op, &[u32]); 28] = [
        (Full, &[1]),
        (Low, &[1]),
        (Infer, &[1]),
        (Clear, &[1]),
        (Low, &[4]),
        (Infer, &[1]),
        (Clear, &[1]),
        (Low, &[7]),
        (Infer, &[1]),
        (Clear, &[1]),
        (Low, &[7, 4]),
        (Infer, &[1]),
        (Infer, &[1]),
        (Full, &[1]),
        (Low, &[1, 5]),
        (Clear, &[1]),
        (Clear, &[1]),
        (Low, &[1]),
        (Infer, &[1]),
        (Infer, &[1, 20]),
        (Full, &[1]),
        (Low, &[1]),
        (Infer, &[1]),
        (Infer, &[1]),
        (Infer, &[1, 2]),
        (Low, &[1]),
        (Infer, &[1]),
        (Infer, &[1, 8]),
    ];
    let mut random = Random(1);
    let mut problem = Problem::with_vertices(vertices).unwrap();
    let mut readers = vec![Vec::new(); vertices as usize];
    for v in 0..vertices {
        let (op, reads) = BLOCK[v as usize % BLOCK.len()];
        for back in reads.iter().filter(|&&back| back <= v) {
            readers[(v - back) as usize].push(Vertex(v));
        }
        match op {
            Low => problem.fix(Vertex(v), Label::Low).unwrap(),
            Full => problem.fix(Vertex(v), Label::Full).unwrap(),
            Infer => problem.unary(Vertex(v), 2, 1).unwrap(),
            Clear => {}
        }
        // A weight, and one of the block that two vertices share.
        if op == Low {
            problem.shared(7, &[Vertex(v), Vertex(v.saturating_sub(1))]).unwrap();
        }
    }
    for (v, readers) in (0..).map(Vertex).zip(readers) {
        let bytes = random.cost(8);
        problem.tensor(v, 2 * bytes, 2 * bytes, &readers).unwrap();
    }
    problem
}

/// A random graph with local edges: some vertices fixed, some with a time, some tensors with many readers.
fn dag(vertices: u32) -> Problem {
    let mut random = Random(2);
    let mut problem = Problem::with_vertices(vertices).unwrap();
    for v in (0..vertices).map(Vertex) {
        match random.below(10) {
            0 => problem.fix(v, Label::Full).unwrap(),
            1 => problem.fix(v, Label::Low).unwrap(),
            2..5 => problem.unary(v, random.cost(100), random.cost(100)).unwrap(),
            _ => {}
        }
    }
    for v in 0..vertices {
        let count = 1 + random.below(3);
        let readers: Vec<Vertex> =
            (0..count).map(|_| Vertex((v + 1 + random.below(50)).min(vertices - 1))).collect();
        problem.tensor(Vertex(v), random.cost(100), random.cost(100), &readers).unwrap();
    }
    problem
}

/// Chains of a thousand free vertices between fixed ones, with a second reader now and then.
fn chains(vertices: u32) -> Problem {
    let mut random = Random(3);
    let mut problem = Problem::with_vertices(vertices).unwrap();
    for v in 0..vertices - 1 {
        if v % 1000 == 0 {
            let label = if random.below(2) == 0 { Label::Full } else { Label::Low };
            problem.fix(Vertex(v), label).unwrap();
        }
        let mut readers = vec![Vertex(v + 1)];
        if random.below(20) == 0 {
            readers.push(Vertex((v + 2 + random.below(30)).min(vertices - 1)));
        }
        problem.tensor(Vertex(v), random.cost(1000), random.cost(1000), &readers).unwrap();
    }
    problem
}

/// A grid whose vertices all prefer something, as in segmentation of noise.
fn noise(vertices: u32) -> Problem {
    let mut random = Random(4);
    let side = vertices.isqrt();
    let mut problem = Problem::with_vertices(side * side).unwrap();
    for v in 0..side * side {
        problem.unary(Vertex(v), random.cost(100), random.cost(100)).unwrap();
        neighbours(&mut problem, &mut random, v, side, 40);
    }
    problem
}

/// A grid, full on one edge and low on the opposite one: all flow goes far.
fn grid(vertices: u32) -> Problem {
    let mut random = Random(5);
    let side = vertices.isqrt();
    let mut problem = Problem::with_vertices(side * side).unwrap();
    for v in 0..side * side {
        match v % side {
            0 => problem.fix(Vertex(v), Label::Full).unwrap(),
            x if x == side - 1 => problem.fix(Vertex(v), Label::Low).unwrap(),
            _ => {}
        }
        neighbours(&mut problem, &mut random, v, side, 1000);
    }
    problem
}

fn neighbours(problem: &mut Problem, random: &mut Random, v: u32, side: u32, most: u32) {
    let right = if v % side + 1 < side { v + 1 } else { v };
    let below = if v / side + 1 < side { v + side } else { v };
    for reader in [right, below] {
        problem.tensor(Vertex(v), random.cost(most), random.cost(most), &[Vertex(reader)]).unwrap();
    }
}

/// Two long rails whose rungs let every augmenting path be longer than the one before.
fn ladder(vertices: u32) -> Problem {
    let mut random = Random(6);
    let half = vertices / 2;
    let mut problem = Problem::with_vertices(vertices).unwrap();
    for v in 0..half - 1 {
        let (a, b) = (Vertex(v), Vertex(half + v));
        problem.unary(a, 0, 1 + i64::from(v % 7)).unwrap();
        problem.unary(b, 1 + i64::from(v % 5), 0).unwrap();
        problem.tensor(a, 1_000_000, 1, &[Vertex(v + 1)]).unwrap();
        problem.tensor(b, 1_000_000, 1, &[Vertex(half + v + 1)]).unwrap();
        if v % 97 == 0 {
            problem.tensor(a, random.cost(1000), 0, &[Vertex(half + random.below(half))]).unwrap();
        }
    }
    problem
}
