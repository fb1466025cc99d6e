//! Random small problems with every kind of term, against a search over all labellings, and what a solution promises.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ampc_passes::cut::{
    Broken, Contradiction, DEFAULT_BUDGET, Invalid, Label, Link, Place, Problem, SolveOptions, Step,
    Uncertified, Vertex,
};

/// A generator of the kind xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 33) % end as u64).unwrap()
    }

    fn vertex(&mut self, count: usize) -> Vertex {
        Vertex(u32::try_from(self.below(count)).unwrap())
    }

    /// Often 0 and often equal to others, so that there are ties.
    fn cost(&mut self) -> i64 {
        let most = [1, 3, 10, 1000][self.below(4)];
        i64::try_from(self.below(most)).unwrap()
    }

    fn readers(&mut self, count: usize, most: usize) -> Vec<Vertex> {
        (0..self.below(most + 1)).map(|_| self.vertex(count)).collect()
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for index in (1..list.len()).rev() {
            list.swap(index, self.below(index + 1));
        }
    }
}

type OwnedPlace = (Option<usize>, i64, i64, Vec<Vertex>);

#[derive(Clone, Debug)]
enum Term {
    Fix(Vertex, Label),
    Unary(Vertex, i64, i64),
    Equal(Vec<Vertex>),
    Imply(Vertex, Vertex),
    Tensor(Vertex, i64, i64, Vec<Vertex>),
    Scoped(Vertex, Vec<OwnedPlace>),
    Shared(i64, Vec<Vertex>),
    Foreign(i64, i64, Vec<Vertex>),
}

impl Term {
    fn random(random: &mut Random, count: usize) -> Term {
        let vertex = random.vertex(count);
        match random.below(14) {
            0 => Term::Fix(vertex, Label::Full),
            1 => Term::Fix(vertex, Label::Low),
            2 | 3 => Term::Unary(vertex, random.cost(), random.cost()),
            4 => Term::Equal(random.readers(count, 3)),
            5 => Term::Imply(vertex, random.vertex(count)),
            6..10 => Term::Tensor(vertex, random.cost(), random.cost(), random.readers(count, 4)),
            10 | 11 => {
                let places = (0..random.below(5)).map(|index| {
                    let parent = (index > 0).then(|| random.below(index));
                    (parent, random.cost(), random.cost(), random.readers(count, 2))
                });
                Term::Scoped(vertex, places.collect())
            }
            12 => Term::Shared(random.cost(), random.readers(count, 5)),
            _ => Term::Foreign(random.cost(), random.cost(), random.readers(count, 4)),
        }
    }

    /// The same term about other vertices.
    fn renamed(&self, new: &[Vertex]) -> Term {
        let one = |v: Vertex| new[v.index()];
        let all = |list: &[Vertex]| list.iter().map(|&v| one(v)).collect::<Vec<_>>();
        match self {
            Term::Fix(v, label) => Term::Fix(one(*v), *label),
            Term::Unary(v, full, low) => Term::Unary(one(*v), *full, *low),
            Term::Equal(list) => Term::Equal(all(list)),
            Term::Imply(u, v) => Term::Imply(one(*u), one(*v)),
            Term::Tensor(p, narrow, widen, list) => Term::Tensor(one(*p), *narrow, *widen, all(list)),
            Term::Scoped(p, places) => Term::Scoped(
                one(*p),
                places.iter().map(|(parent, n, w, list)| (*parent, *n, *w, all(list))).collect(),
            ),
            Term::Shared(dup, list) => Term::Shared(*dup, all(list)),
            Term::Foreign(full, low, list) => Term::Foreign(*full, *low, all(list)),
        }
    }

    fn add(&self, problem: &mut Problem) {
        match self {
            Term::Fix(v, label) => problem.fix(*v, *label),
            Term::Unary(v, full, low) => problem.unary(*v, *full, *low),
            Term::Equal(list) => problem.equal(list),
            Term::Imply(u, v) => problem.imply(*u, *v),
            Term::Tensor(p, narrow, widen, list) => problem.tensor(*p, *narrow, *widen, list),
            Term::Scoped(p, places) => {
                let places: Vec<Place<'_>> = places
                    .iter()
                    .map(|(parent, narrow, widen, readers)| Place {
                        parent: *parent,
                        narrow: *narrow,
                        widen: *widen,
                        readers,
                    })
                    .collect();
                problem.scoped(*p, &places)
            }
            Term::Shared(dup, list) => problem.shared(*dup, list),
            Term::Foreign(full, low, list) => problem.foreign(*full, *low, list),
        }
        .unwrap();
    }
}

fn problem(count: usize, terms: &[Term]) -> Problem {
    let mut problem = Problem::with_vertices(u32::try_from(count).unwrap()).unwrap();
    terms.iter().for_each(|term| term.add(&mut problem));
    problem
}

fn random_terms(random: &mut Random, count: usize) -> Vec<Term> {
    (0..2 + random.below(3 * count)).map(|_| Term::random(random, count)).collect()
}

fn all_labels(count: usize) -> impl Iterator<Item = Vec<Label>> {
    let label = |bit| if bit == 0 { Label::Low } else { Label::Full };
    (0..1_u32 << count).map(move |bits| (0..count).map(|v| label(bits >> v & 1)).collect())
}

/// The least cost, and what is full in every labelling of that cost.
fn brute_force(problem: &Problem, count: usize) -> Option<(i64, Vec<Label>)> {
    let mut best: Option<(i64, Vec<Label>)> = None;
    for labels in all_labels(count) {
        let Ok(cost) = problem.cost(&labels) else { continue };
        match &mut best {
            Some((least, _)) if *least < cost => {}
            Some((least, meet)) if *least == cost => {
                meet.iter_mut().zip(labels).for_each(|(meet, label)| *meet = label.min(*meet));
            }
            _ => best = Some((cost, labels)),
        }
    }
    best
}

fn without_reductions() -> SolveOptions {
    SolveOptions { reduce: false, ..SolveOptions::default() }
}

#[test]
fn least_cost_and_most_low_of_all_labellings() {
    let (mut contradictions, mut mixed) = (0, 0);
    for seed in 0..10_000 {
        let mut random = Random::new(seed);
        let count = 1 + random.below(8);
        let terms = random_terms(&mut random, count);
        let problem = problem(count, &terms);
        let Some((cost, labels)) = brute_force(&problem, count) else {
            assert!(problem.solve(DEFAULT_BUDGET).is_err(), "seed {seed}: {terms:?}");
            contradictions += 1;
            continue;
        };
        for options in [SolveOptions::default(), without_reductions()] {
            let solution = problem.solve_with(&options).unwrap();
            assert_eq!((solution.cost, &solution.labels), (cost, &labels), "seed {seed}: {terms:?}");
            assert!(solution.optimal && solution.lower_bound == cost);
            solution.certificate.check(&problem, &labels).unwrap();
        }
        mixed += usize::from(cost > 0 && labels.contains(&Label::Low) && labels.contains(&Label::Full));
    }
    assert!(contradictions > 300 && mixed > 1500, "{contradictions} contradictions, {mixed} mixed");
}

#[test]
fn the_order_of_vertices_and_terms_does_not_matter() {
    for seed in 0..2_000 {
        let mut random = Random::new(seed);
        let count = 2 + random.below(20);
        let mut terms = random_terms(&mut random, count);
        let mut new: Vec<Vertex> = (0..).map(Vertex).take(count).collect();
        random.shuffle(&mut new);
        let before = problem(count, &terms).solve(DEFAULT_BUDGET);
        random.shuffle(&mut terms);
        let terms: Vec<Term> = terms.iter().map(|term| term.renamed(&new)).collect();
        let after = problem(count, &terms).solve(DEFAULT_BUDGET);
        let (Ok(before), Ok(after)) = (&before, &after) else {
            assert_eq!(before.is_err(), after.is_err(), "seed {seed}");
            continue;
        };
        assert_eq!(before.cost, after.cost, "seed {seed}");
        for (old, new) in new.iter().enumerate() {
            assert_eq!(before.labels[old], after.labels[new.index()], "seed {seed}");
        }
    }
}

/// A grid in which every vertex prefers something.
fn grid(side: usize, seed: u64) -> Problem {
    let mut random = Random::new(seed);
    let mut problem = Problem::with_vertices(u32::try_from(side * side).unwrap()).unwrap();
    let vertex = |index: usize| Vertex(u32::try_from(index).unwrap());
    for v in 0..side * side {
        problem.unary(vertex(v), random.cost(), random.cost()).unwrap();
        let right = if v % side + 1 < side { v + 1 } else { v };
        let below = if v / side + 1 < side { v + side } else { v };
        problem.tensor(vertex(v), random.cost(), random.cost(), &[vertex(right), vertex(below)]).unwrap();
        if random.below(50) == 0 {
            problem.imply(vertex(v), vertex(random.below(side * side))).unwrap();
        }
    }
    problem
}

#[test]
fn a_spent_budget_leaves_a_bound_and_a_labelling() {
    let mut stopped = 0;
    for seed in 0..20 {
        let problem = grid(20, seed);
        let optimum = problem.solve(DEFAULT_BUDGET).unwrap();
        assert!(optimum.optimal);
        for budget in [0, 10, 100, 1000, 2000, 5000, 10_000] {
            for reduce in [false, true] {
                let solution = problem.solve_with(&SolveOptions { budget, reduce }).unwrap();
                assert_eq!(problem.cost(&solution.labels), Ok(solution.cost));
                assert_eq!(solution.certificate.lower_bound(&problem), Ok(solution.lower_bound));
                assert!(solution.lower_bound <= optimum.cost && optimum.cost <= solution.cost);
                if solution.optimal {
                    assert_eq!(solution.labels, optimum.labels);
                } else {
                    stopped += 1;
                    assert!(solution.certificate.check(&problem, &solution.labels).is_err());
                    let again = problem.solve_with(&SolveOptions { budget, reduce }).unwrap();
                    assert_eq!(solution, again);
                }
            }
        }
    }
    assert!(stopped > 20, "{stopped} were stopped");
}

#[test]
fn reductions_change_nothing_in_larger_problems() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let count = 30 + random.below(300);
        // Full is fixed in the first half only, low in the other one, and nothing follows towards it.
        let terms = (0..2 * count).filter_map(|_| match Term::random(&mut random, count) {
            Term::Equal(_) => None,
            Term::Fix(v, _) if v.index() < count / 2 => Some(Term::Fix(v, Label::Full)),
            Term::Fix(v, _) => Some(Term::Fix(v, Label::Low)),
            Term::Imply(u, v) => Some(Term::Imply(u.max(v), u.min(v))),
            term => Some(term),
        });
        let terms: Vec<Term> = terms.collect();
        let problem = problem(count, &terms);
        let results = [SolveOptions::default(), without_reductions()].map(|options| {
            let solution = problem.solve_with(&options).unwrap();
            solution.certificate.check(&problem, &solution.labels).unwrap();
            (solution.cost, solution.labels)
        });
        assert_eq!(results[0], results[1], "seed {seed}");
    }
}

/// The least cost of places that serve all that need it, by trying all sets of places.
fn cheapest_places(places: &[OwnedPlace], producer: Label, labels: &[Label]) -> i64 {
    let cost = |index: usize| if producer == Label::Full { places[index].1 } else { places[index].2 };
    let serves = |set: u32| {
        places.iter().enumerate().all(|(index, place)| {
            let mut around = std::iter::successors(Some(index), |&inner| places[inner].0);
            place.3.iter().all(|reader| labels[reader.index()] == producer)
                || around.any(|place| set >> place & 1 == 1)
        })
    };
    let sets = (0..1_u32 << places.len()).filter(|&set| serves(set));
    sets.map(|set| (0..places.len()).filter(|&p| set >> p & 1 == 1).map(cost).sum()).min().unwrap()
}

#[test]
fn used_places_serve_all_and_cost_what_is_paid() {
    let mut checked = 0;
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let term = Term::random(&mut random, 4);
        let Term::Scoped(producer, places) = &term else { continue };
        let problem = problem(4, std::slice::from_ref(&term));
        for labels in all_labels(4) {
            let producer = labels[producer.index()];
            let cost = problem.cost(&labels).unwrap();
            assert_eq!(
                cost,
                cheapest_places(places, producer, &labels),
                "seed {seed}: {places:?} {labels:?}"
            );
            let used = problem.used_places(0, &labels).unwrap();
            let of = |place: &usize| {
                if producer == Label::Full { places[*place].1 } else { places[*place].2 }
            };
            assert_eq!(used.iter().map(of).sum::<i64>(), cost);
            for (index, place) in places.iter().enumerate() {
                let needs = place.3.iter().any(|reader| labels[reader.index()] != producer);
                let around = std::iter::successors(Some(index), |&inner| places[inner].0);
                let served = around.filter(|place| used.contains(place)).count();
                assert!(served <= 1 && (served == 1 || !needs), "seed {seed}: {places:?} {labels:?}");
            }
            checked += 1;
        }
    }
    assert!(checked > 1000);
}

#[test]
fn of_equally_cheap_places_the_outermost_is_used() {
    let mut problem = Problem::with_vertices(3).unwrap();
    let inner = |vertex| Place { parent: Some(0), narrow: 2, widen: 1, readers: vertex };
    let outer = Place { parent: None, narrow: 4, widen: 3, readers: &[] };
    problem.scoped(Vertex(0), &[outer, inner(&[Vertex(1)]), inner(&[Vertex(2)])]).unwrap();
    let used = |labels: [Label; 3]| problem.used_places(0, &labels).unwrap();
    use Label::{Full, Low};
    assert_eq!(used([Full, Low, Low]), [0]);
    assert_eq!(used([Low, Full, Full]), [1, 2]);
    assert_eq!(used([Full, Full, Low]), [2]);
    assert!(used([Full, Full, Full]).is_empty());
    assert!(problem.used_places(1, &[Low; 3]).unwrap().is_empty());
    assert_eq!(problem.used_places(0, &[Low]), Err(Broken::Labels { expected: 3, found: 1 }));
}

#[test]
fn contradictions_name_the_shortest_chain() {
    let v = |list: &[u32]| list.iter().copied().map(Vertex).collect::<Vec<_>>();
    let mut problem = Problem::with_vertices(6).unwrap();
    problem.equal(&v(&[5, 4])).unwrap();
    problem.equal(&v(&[0, 1])).unwrap();
    problem.imply(Vertex(3), Vertex(2)).unwrap();
    problem.imply(Vertex(1), Vertex(2)).unwrap();
    problem.equal(&v(&[2, 4, 3])).unwrap();
    problem.fix(Vertex(0), Label::Full).unwrap();
    problem.fix(Vertex(3), Label::Low).unwrap();
    let contradiction = problem.solve(DEFAULT_BUDGET).unwrap_err();
    let step = |by, vertex| Step { by, vertex: Vertex(vertex) };
    let steps = vec![step(Link::Equal(1), 1), step(Link::Imply(1), 2), step(Link::Equal(2), 3)];
    assert_eq!(contradiction, Contradiction { full: Vertex(0), steps });
    assert_eq!(contradiction.low(), Vertex(3));
    assert_eq!(
        contradiction.to_string(),
        "vertex 0 is fixed full, vertex 1 is equal by group 1, so vertex 2 is full by implication 1, \
         vertex 3 is equal by group 2, but it is fixed low"
    );
    // From low to full nothing follows.
    let mut problem = Problem::with_vertices(2).unwrap();
    problem.imply(Vertex(0), Vertex(1)).unwrap();
    problem.fix(Vertex(0), Label::Low).unwrap();
    problem.fix(Vertex(1), Label::Full).unwrap();
    assert_eq!(problem.solve(DEFAULT_BUDGET).unwrap().labels, [Label::Low, Label::Full]);
    // Both labels for one vertex.
    problem.fix(Vertex(0), Label::Full).unwrap();
    let contradiction = problem.solve(DEFAULT_BUDGET).unwrap_err();
    assert_eq!(contradiction.to_string(), "vertex 0 is fixed full, but it is fixed low");
}

#[test]
fn bad_terms_are_refused_and_leave_the_problem_as_it_was() {
    let mut problem = Problem::with_vertices(2).unwrap();
    let (a, b, none) = (Vertex(0), Vertex(1), Vertex(2));
    let missing = Err(Invalid::NoSuchVertex { vertex: none, vertices: 2 });
    assert_eq!(problem.fix(none, Label::Full), missing);
    assert_eq!(problem.unary(none, 1, 1), missing);
    assert_eq!(problem.equal(&[a, none]), missing);
    assert_eq!(problem.imply(a, none), missing);
    assert_eq!(problem.tensor(a, 1, 1, &[b, none]), missing);
    assert_eq!(problem.shared(1, &[none]), missing);
    assert_eq!(problem.foreign(1, 1, &[none]), missing);
    let place = Place { parent: None, narrow: 1, widen: 1, readers: &[] };
    assert_eq!(problem.scoped(a, &[Place { readers: &[none], ..place }]), missing);
    assert_eq!(problem.scoped(a, &[place, place]), Err(Invalid::PlaceOrder(1)));
    assert_eq!(problem.scoped(a, &[Place { parent: Some(0), ..place }]), Err(Invalid::PlaceOrder(0)));
    assert_eq!(problem.unary(a, 1, -1), Err(Invalid::NegativeCost(-1)));
    assert_eq!(problem.tensor(a, i64::MIN, 1, &[b]), Err(Invalid::NegativeCost(i64::MIN)));
    assert_eq!(problem.tensor(a, i64::MAX, 1, &[b]), Err(Invalid::TotalTooLarge));
    assert_eq!(problem.foreign(Problem::MAX_TOTAL / 2 + 1, 0, &[a]), Err(Invalid::TotalTooLarge));
    assert_eq!(problem.cost(&[Label::Full; 2]), Ok(0));
    assert_eq!(Problem::with_vertices(u32::MAX).unwrap_err(), Invalid::TooManyTerms);
    assert_eq!(problem.add_vertex(), Ok(none));
    assert_eq!(problem.fix(none, Label::Full), Ok(()));
}

#[test]
fn costs_may_be_as_large_as_they_fit() {
    let most = Problem::MAX_TOTAL;
    let mut problem = Problem::with_vertices(3).unwrap();
    problem.fix(Vertex(0), Label::Full).unwrap();
    problem.fix(Vertex(2), Label::Low).unwrap();
    problem.imply(Vertex(1), Vertex(0)).unwrap();
    problem.tensor(Vertex(0), most / 2 - 1, 0, &[Vertex(1)]).unwrap();
    problem.tensor(Vertex(1), most / 2, 0, &[Vertex(2)]).unwrap();
    assert_eq!(problem.unary(Vertex(1), 3, 0), Err(Invalid::TotalTooLarge));
    for options in [SolveOptions::default(), without_reductions()] {
        let solution = problem.solve_with(&options).unwrap();
        assert_eq!((solution.cost, solution.labels[1]), (most / 2 - 1, Label::Low));
        solution.certificate.check(&problem, &solution.labels).unwrap();
    }
}

#[test]
fn broken_labels_are_named() {
    use Label::{Full, Low};
    let mut problem = Problem::with_vertices(3).unwrap();
    let [a, b, c] = [0, 1, 2].map(Vertex);
    problem.fix(a, Full).unwrap();
    problem.equal(&[a, b]).unwrap();
    problem.imply(b, c).unwrap();
    assert_eq!(problem.cost(&[Full, Full, Full]), Ok(0));
    assert_eq!(problem.cost(&[Full]), Err(Broken::Labels { expected: 3, found: 1 }));
    assert_eq!(problem.cost(&[Low, Low, Low]), Err(Broken::Fix(a)));
    assert_eq!(problem.cost(&[Full, Low, Low]), Err(Broken::Equal { group: 0, full: a, low: b }));
    assert_eq!(
        problem.cost(&[Full, Full, Low]),
        Err(Broken::Imply { implication: 0, if_full: b, then_full: c })
    );
}

#[test]
fn certificates_are_about_one_problem_and_one_labelling() {
    use Label::{Full, Low};
    // Two optima: the cast before or after the vertex in the middle.
    let mut problem = Problem::with_vertices(3).unwrap();
    problem.fix(Vertex(0), Full).unwrap();
    problem.fix(Vertex(2), Low).unwrap();
    problem.tensor(Vertex(0), 5, 5, &[Vertex(1)]).unwrap();
    problem.tensor(Vertex(1), 5, 5, &[Vertex(2)]).unwrap();
    let solution = problem.solve(DEFAULT_BUDGET).unwrap();
    let check = |problem: &Problem, labels: &[Label]| solution.certificate.check(problem, labels);
    assert_eq!(solution.labels, [Full, Low, Low]);
    assert_eq!(check(&problem, &solution.labels), Ok(()));
    assert_eq!(check(&problem, &[Full, Full, Low]), Err(Uncertified::CouldBeLow(Vertex(1))));
    assert_eq!(check(&problem, &[Low; 3]), Err(Uncertified::Broken(Broken::Fix(Vertex(0)))));
    problem.unary(Vertex(1), 0, 2).unwrap();
    assert!(matches!(check(&problem, &solution.labels), Err(Uncertified::Arcs { .. })));
    // The same network but for a capacity.
    for (narrow, expected) in
        [(4, Uncertified::Capacity(0)), (6, Uncertified::Gap { cost: 6, lower_bound: 5 })]
    {
        let mut other = Problem::with_vertices(3).unwrap();
        other.fix(Vertex(0), Full).unwrap();
        other.fix(Vertex(2), Low).unwrap();
        other.tensor(Vertex(0), narrow, 5, &[Vertex(1)]).unwrap();
        other.tensor(Vertex(1), 5, 5, &[Vertex(2)]).unwrap();
        assert_eq!(check(&other, &solution.labels), Err(expected));
    }
}
