//! What a planner does with networks and with rules.

use super::*;
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{Gru, Linear, Params};
use crate::ops::Activation;
use crate::random::Random;
use crate::search::{Gumbel, Method, Outcome, Puct};
use crate::tensors::NamedTensors;
use candle_core::{Device, Tensor};

const ACTIONS: usize = 3;
const WIDTH: usize = 8;

/// A board of 4 values, and a memory.
struct Initial(Linear, Gru, [Linear; 3]);

impl Layers for Initial {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let board = e.input("board")?;
        let x = e.linear(&board, &self.0, Activation::Relu)?;
        let x = self.1.forward(e, &x)?;
        // Not in the recurrent network's order, and with something between that planning does not need.
        let [logits, value, embedding] = [0, 1, 2].map(|i| e.linear(&x, &self.2[i], Activation::None));
        Ok([value?, x, logits?, embedding?].map(Output::Floats).into())
    }
}

struct Dynamics(Tensor, [Linear; 4]);

impl Layers for Dynamics {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let (x, action) = (e.input("embedding")?, e.indices("action")?);
        let x = e.lookup_linear(&x, &action, &[&self.0], &self.1[0])?;
        let heads = [1, 2, 3].map(|i| e.linear(&x, &self.1[i], Activation::None).map(Output::Floats));
        heads.into_iter().chain([Ok(Output::Floats(x.clone()))]).collect()
    }
}

fn floats(name: &str, width: usize) -> TensorSpec {
    TensorSpec::f32(name, &[width])
}

fn networks() -> (Arc<dyn Model>, Arc<dyn Model>) {
    let params = Params::init(Random::new(11), &Device::Cpu);
    let linear = |name: &str, inputs, outputs| Linear::new(inputs, outputs, &params.pp(name)).unwrap();
    let mut state = Vec::new();
    let memory = Gru::new(WIDTH, WIDTH, &params.pp("memory"), &mut state).unwrap();
    let heads = [linear("logits", WIDTH, ACTIONS), linear("value", WIDTH, 1), linear("embedding", WIDTH, WIDTH)];
    let outputs = vec![floats("value", 1), floats("memory", WIDTH), floats("logits", ACTIONS), floats("embedding", WIDTH)];
    let signature = Signature { inputs: vec![floats("board", 4)], outputs, state };
    let layers = Initial(linear("board", 4, WIDTH), memory, heads);
    let initial = Network::of(("initial", &()), signature, &Device::Cpu, layers).unwrap();

    let inputs = vec![TensorSpec::u32("action", &[1]).below(&[ACTIONS as u32]), floats("embedding", WIDTH)];
    let outputs = vec![floats("reward", 1), floats("logits", ACTIONS), floats("value", 1), floats("embedding", WIDTH)];
    let signature = Signature { inputs, outputs, state: Vec::new() };
    let one_hot = Tensor::eye(ACTIONS, DType::F32, &Device::Cpu).unwrap();
    let next = linear("next", WIDTH + ACTIONS, WIDTH);
    let heads = [next, linear("next.reward", WIDTH, 1), linear("next.logits", WIDTH, ACTIONS), linear("next.value", WIDTH, 1)];
    let recurrent = Network::of(("dynamics", &()), signature, &Device::Cpu, Dynamics(one_hot, heads)).unwrap();
    (Arc::new(initial), Arc::new(recurrent))
}

fn options(batch: usize, method: Method, threads: usize) -> PlannerOptions {
    let search = Settings { method, simulations: 15, max_depth: None };
    PlannerOptions { batch, search, discount: -1.0, place: Placement::cpu(threads) }
}

fn board(game: usize) -> [f32; 4] {
    std::array::from_fn(|i| Random::new(12).at(game as u64).normal(i as u64))
}

fn addresses(games: usize) -> Vec<Random> {
    (0..games as u64).map(|game| Random::new(13).at(game)).collect()
}

fn planner(batch: usize, method: Method, threads: usize) -> Planner {
    let (initial, recurrent) = networks();
    let mut planner = Planner::new(initial, recurrent, &options(batch, method, threads)).unwrap();
    for game in 0..batch {
        planner.floats_mut("board", game).unwrap().copy_from_slice(&board(game));
        planner.legal_mut(game).unwrap()[game % ACTIONS] = !game.is_multiple_of(4);
    }
    planner
}

/// What the search finds with the networks run on tensors, row by row.
fn on_tensors(game: usize, method: Method, noise: Random) -> (u32, Vec<u32>, f32) {
    let (initial, recurrent) = networks();
    let tensor = |values: &[f32]| Tensor::from_slice(values, (1, values.len()), &Device::Cpu).unwrap();
    let vector = |tensors: &NamedTensors, name: &str| tensors.get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let inputs = NamedTensors::from_iter([("board".to_owned(), tensor(&board(game)))]);
    let (root, _) = initial.step(&inputs, &[true], &initial.initial_state(1).unwrap()).unwrap();
    let mut model = |e: &mut Expansion| {
        let action = Tensor::from_slice(e.actions(), (1, 1), &Device::Cpu)?;
        let inputs = NamedTensors::from_iter([("action".to_owned(), action), ("embedding".to_owned(), tensor(e.embeddings(0).0))]);
        let (outputs, _) = recurrent.step(&inputs, &[true], &NamedTensors::new())?;
        e.embeddings(0).1.copy_from_slice(&vector(&outputs, "embedding"));
        e.logits.copy_from_slice(&vector(&outputs, "logits"));
        (e.rewards[0], e.values[0], e.discounts[0]) = (vector(&outputs, "reward")[0], vector(&outputs, "value")[0], -1.0);
        Ok(())
    };
    let mut legal = [true; ACTIONS];
    legal[game % ACTIONS] = !game.is_multiple_of(4);
    let (logits, values, embeddings) = (vector(&root, "logits"), vector(&root, "value"), vector(&root, "embedding"));
    let roots = Roots { logits: &logits, values: &values, embeddings: &embeddings, legal: &legal };
    let settings = options(1, method, 1).search;
    let mut search = Search::new(Sizes { batch: 1, simulations: 15, actions: ACTIONS, embedding: WIDTH }).unwrap();
    let found = search.run(&roots, &settings, Noise::Rows(&[noise]), &mut model).unwrap();
    (found.actions()[0], found.visits(0).to_vec(), found.values()[0])
}

#[test]
fn plans_are_those_of_the_search_on_any_number_of_threads() {
    const GAMES: usize = 21;
    for method in [Method::Gumbel(Gumbel::default()), Method::Puct(Puct::default())] {
        let noise = addresses(GAMES);
        let mut one = planner(GAMES, method, 1);
        let mut three = planner(GAMES, method, 3);
        assert_eq!((one.lanes.len(), three.lanes.len()), (1, 3));
        let (one, three) = (one.plan(Noise::Rows(&noise)).unwrap(), three.plan(Noise::Rows(&noise)).unwrap());
        for (game, address) in noise.iter().enumerate() {
            let (action, visits, value) = on_tensors(game, method, *address);
            for plan in [&one, &three] {
                assert_eq!((plan.action(game), plan.visits(game)), (action, &visits[..]), "game {game}");
                assert!((plan.value(game) - value).abs() < 1e-5, "game {game}");
            }
            // The engine's products round a row by how many are computed together.
            let pairs = [(one.weights(game), three.weights(game)), (one.q(game), three.q(game))];
            assert!(pairs.iter().all(|(x, y)| x.iter().zip(*y).all(|(x, y)| (x - y).abs() < 1e-5)), "game {game}: {pairs:?}");
            assert_eq!(one.tree(game).children.len(), three.tree(game).children.len());
        }
    }
}

/// Stones of which one or two are taken in turn; who takes the last wins.
struct Stones;

impl Rules for Stones {
    fn play(&self, seen: &[f32], action: u32, next: &mut [f32], legal: &mut [bool]) -> Outcome {
        let left = seen[0] - 1.0 - action as f32;
        next[0] = if left < 0.0 { seen[0] } else { left };
        (legal[0], legal[1]) = (left >= 1.0, left >= 2.0);
        Outcome { reward: if left == 0.0 { 1.0 } else { 0.0 }, next: (left > 0.0).then(|| self.bounds()) }
    }

    fn bounds(&self) -> [f32; 2] {
        [-1.0, 1.0]
    }
}

/// Rules that show what is no number.
struct Lost;

impl Rules for Lost {
    fn play(&self, _: &[f32], _: u32, next: &mut [f32], legal: &mut [bool]) -> Outcome {
        next.fill(f32::NAN);
        legal.fill(true);
        Outcome { reward: 0.0, next: Some([-1.0, 1.0]) }
    }
}

struct Guess([Linear; 3]);

impl Layers for Guess {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let seen = e.input("stones")?;
        self.0.iter().map(|head| Ok(Output::Floats(e.linear(&seen, head, Activation::None)?))).collect()
    }
}

#[test]
fn by_the_rules_the_best_move_is_found_whatever_the_network_says() {
    let params = Params::init(Random::new(4), &Device::Cpu);
    let head = |name: &str, outputs| Linear::new(1, outputs, &params.pp(name)).unwrap();
    let outputs = vec![floats("embedding", 1), floats("logits", 2), floats("value", 1)];
    let signature = Signature { inputs: vec![floats("stones", 1)], outputs, state: Vec::new() };
    let layers = Guess([head("embedding", 1), head("logits", 2), head("value", 1)]);
    let network: Arc<dyn Model> = Arc::new(Network::of(("guess", &()), signature, &Device::Cpu, layers).unwrap());
    let rules: Arc<dyn Rules> = Arc::new(Stones);
    let games: Vec<usize> = (2..=9).collect();
    for (method, threads) in
        [(Method::Gumbel(Gumbel::default()), 1), (Method::Puct(Puct::default()), 1), (Method::Puct(Puct::default()), 2)]
    {
        let search = Settings { method, simulations: 2000, max_depth: None };
        let options = PlannerOptions { search, ..options(games.len(), method, threads) };
        let mut planner = Planner::by_rules(network.clone(), &rules, &options).unwrap();
        for (game, stones) in games.iter().enumerate() {
            planner.floats_mut("stones", game).unwrap()[0] = *stones as f32;
        }
        let plan = planner.plan(Noise::None).unwrap();
        for (game, stones) in games.iter().enumerate() {
            // Who leaves three, six or nine wins; who has them loses.
            let (wins, value) = (stones % 3 > 0, plan.q(game)[plan.action(game) as usize]);
            if wins {
                assert_eq!(plan.action(game) as usize, stones % 3 - 1, "{method:?}: {stones} stones");
            }
            assert!(plan.tree(game).certain && value == if wins { 1.0 } else { -1.0 }, "{method:?}: {stones} stones are worth {value}");
        }
    }
    // The runner refuses what rules show that is no number.
    let lost: Arc<dyn Rules> = Arc::new(Lost);
    let mut planner = Planner::by_rules(network, &lost, &options(1, Method::Puct(Puct::default()), 1)).unwrap();
    planner.floats_mut("stones", 0).unwrap()[0] = 3.0;
    let error = planner.plan(Noise::None).err().unwrap().to_string();
    assert!(error.contains("stones") && error.contains("finite numbers"), "{error}");
    let (remembers, _) = networks();
    let error = Planner::by_rules(remembers, &rules, &options(1, Method::Puct(Puct::default()), 1)).err().unwrap().to_string();
    assert!(error.contains("no state where the rules are known"), "{error}");
}

#[test]
fn a_networks_memory_lasts_from_plan_to_plan_until_a_reset() {
    let mut planner = planner(2, Method::Puct(Puct::default()), 1);
    let values = |planner: &mut Planner| {
        let plan = planner.plan(Noise::None).unwrap();
        [plan.value(0), plan.value(1)]
    };
    let first = values(&mut planner);
    let second = values(&mut planner);
    planner.reset(1).unwrap();
    let third = values(&mut planner);
    assert!(first[0] != second[0] && second[0] != third[0]);
    assert!(first[1] != second[1] && third[1] == first[1]);
}

#[test]
fn what_does_not_fit_is_named() {
    let method = Method::Gumbel(Gumbel::default());
    let (initial, recurrent) = networks();
    let message = |initial: &Arc<dyn Model>, recurrent: &Arc<dyn Model>, options: &PlannerOptions| {
        Planner::new(initial.clone(), recurrent.clone(), options).err().unwrap().to_string()
    };
    let right = options(2, method, 1);
    let other = message(&initial, &initial, &right);
    assert_eq!(other, "tensor embedding: expected F32 among the inputs of the recurrent network, found none of that name");
    assert_eq!(message(&initial, &recurrent, &options(0, method, 1)), "config: batch: expected at least 1, found 0");
    let infinite = PlannerOptions { discount: f32::NAN, ..right };
    assert_eq!(message(&initial, &recurrent, &infinite), "config: discount: expected a finite number, found NaN");

    let mut planner = Planner::new(initial, recurrent, &right).unwrap();
    assert_eq!(planner.floats_mut("board", 2).unwrap_err().to_string(), "there is no game 2");
    assert!(planner.floats_mut("bord", 1).unwrap_err().to_string().starts_with("tensor bord: expected an input of the model"));
    planner.floats_mut("board", 0).unwrap().fill(1.0);
    let unset = planner.plan(Noise::None).err().unwrap().to_string();
    assert_eq!(unset, "tensor board: expected to be set before the first pass: it has no default, found nothing");
    planner.floats_mut("board", 1).unwrap().fill(1.0);
    let few = planner.plan(Noise::Rows(&[Random::new(1)])).err().unwrap().to_string();
    assert_eq!(few, "tensor random addresses: expected 2 of 2 roots, found 1");
    planner.legal_mut(1).unwrap().fill(false);
    assert_eq!(planner.plan(Noise::None).err().unwrap().to_string(), "root 1: no action is legal");

    let mut two = self::planner(20, method, 2);
    two.legal_mut(15).unwrap().fill(false);
    assert_eq!(two.plan(Noise::None).err().unwrap().to_string(), "root 15: no action is legal");
}
