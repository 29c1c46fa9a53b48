//! The labels of rows, and the scores that go with them: the last step of TreeEnsembleClassifier.
//!
//! ONNX says little about two classes; the rules are onnxruntime's (tree_ensemble_aggregator.h).

use super::forest::Number;
use super::post::{Post, logistic};

/// The classes of a classifier.
pub(super) struct Classes {
    pub labels: Vec<i64>,
    /// Two classes, and weights of one of them alone: the other one's score follows.
    pub is_binary: bool,
    /// No weight is negative, so that the score of a binary classifier is a probability.
    pub is_positive: bool,
    pub base: Vec<f64>,
    pub post: Post,
}

/// How one score becomes those of two classes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pair {
    /// It is a probability.
    Complement,
    /// It is a distance from the border.
    Opposite,
}

impl Classes {
    /// Returns the label of a row, and writes its scores to `out`. `scores` and `has` are sums of the leaves' weights and
    /// whether there were any.
    pub(super) fn finish<T: Number>(&self, scores: &mut [T], has: &mut [bool], out: &mut [f64]) -> i64 {
        match self.labels.len() {
            1 => self.finish_one(scores, out),
            2 => self.finish_two(scores, has, out),
            _ => self.finish_many(scores, has, out),
        }
    }

    fn finish_one<T: Number>(&self, scores: &mut [T], out: &mut [f64]) -> i64 {
        if let [base] = self.base[..] {
            scores[0] += T::of(base);
        }
        out[0] = scores[0].wide();
        if self.post == Post::Probit {
            self.post.apply(out);
        }
        i64::from(scores[0].wide() > 0.0)
    }

    fn finish_two<T: Number>(&self, scores: &mut [T], has: &mut [bool], out: &mut [f64]) -> i64 {
        let mut n_scores = if has[1] { 2 } else { 1 };
        match self.base[..] {
            [_, base] if has[1] => {
                let mut sum = T::of(base);
                sum += scores[0];
                scores[1] = sum;
                scores[0] = T::of(-sum.wide());
            }
            [first, second] => {
                scores[0] += T::of(first);
                scores[1] += T::of(second);
                n_scores = 2;
            }
            [base] => scores[0] += T::of(base),
            _ => {}
        }
        let [first, second] = [scores[0].wide(), scores[1].wide()];
        let decisive = match has {
            [_, true] => second,
            [true, false] => first,
            _ => 0.0,
        };
        let (is_second, pair) = match (self.is_binary, self.is_positive) {
            (true, true) => (decisive > 0.5, Pair::Complement),
            _ => (decisive > 0.0, Pair::Opposite),
        };
        if n_scores == 2 {
            // A class without weights has no score, not even its base.
            out[0] = if has[0] { first } else { 0.0 };
            out[1] = if has[1] { second } else { 0.0 };
            self.post.apply(out);
        } else {
            self.expand(first, pair, out);
        }
        match self.is_binary {
            true => self.labels[usize::from(is_second)],
            // As onnxruntime: not the labels of the node.
            false => i64::from(is_second),
        }
    }

    /// Makes two scores of one.
    fn expand(&self, score: f64, pair: Pair, out: &mut [f64]) {
        let two = match (self.post, pair) {
            (Post::Probit, _) => {
                let mut one = [score];
                self.post.apply(&mut one);
                [one[0], -one[0]]
            }
            (Post::Logistic, _) => [logistic(-score), logistic(score)],
            (_, Pair::Complement) => [1.0 - score, score],
            (_, Pair::Opposite) => [-score, score],
        };
        out.copy_from_slice(&two);
    }

    fn finish_many<T: Number>(&self, scores: &mut [T], has: &mut [bool], out: &mut [f64]) -> i64 {
        for (i, &base) in self.base.iter().enumerate() {
            scores[i] += T::of(base);
            has[i] = true;
        }
        let mut best: Option<usize> = None;
        for (i, score) in scores.iter().enumerate().filter(|(i, _)| has[*i]) {
            if best.is_none_or(|best| *score > scores[best]) {
                best = Some(i);
            }
        }
        out.iter_mut().zip(scores.iter()).for_each(|(out, score)| *out = score.wide());
        self.post.apply(out);
        self.labels[best.unwrap_or(0)]
    }
}
