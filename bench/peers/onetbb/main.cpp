// oneTBB beside devbay: computes a graph when the benchmarks ask for it.
//
// It obeys lines on its standard input, as bench/src/peers.rs describes: `graph` and `run`. A node is a continue_node,
// an edge a make_edge; the flow graph is made once and reused from run to run. A run puts a message to each node
// without predecessors and waits for all; so "one thread" is the calling one, and what runs is limited by
// global_control. Node i of the graph's n takes the sum of its predecessors' values, and 1 if it has at most one;
// unsigned numbers wrap around.

#include <oneapi/tbb/flow_graph.h>
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/version.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace flow = oneapi::tbb::flow;
using Node = flow::continue_node<flow::continue_msg>;

// A graph, ready to run. Predecessors lie in one array, so that a node's are one read away.
class Loaded {
public:
    Loaded(std::size_t threads, const std::string &path)
        : limit_(oneapi::tbb::global_control::max_allowed_parallelism, threads) {
        std::ifstream file(path);
        std::size_t n = 0;
        if (!(file >> n) || n == 0) {
            throw std::runtime_error("cannot read " + path);
        }
        first_.reserve(n + 1);
        first_.push_back(0);
        for (std::size_t node = 0; node < n; ++node) {
            std::size_t degree = 0;
            file >> degree;
            for (std::size_t i = 0; i < degree; ++i) {
                std::uint32_t predecessor = 0;
                file >> predecessor;
                predecessors_.push_back(predecessor);
            }
            first_.push_back(static_cast<std::uint32_t>(predecessors_.size()));
        }
        if (!file) {
            throw std::runtime_error(path + " ends early");
        }
        values_.resize(n);
        std::vector<std::vector<std::uint32_t>> successors(n);
        for (std::size_t node = 0; node < n; ++node) {
            nodes_.emplace_back(graph_, [this, node](const flow::continue_msg &) { compute(node); });
            for (auto i = first_[node]; i < first_[node + 1]; ++i) {
                successors[predecessors_[i]].push_back(static_cast<std::uint32_t>(node));
            }
            if (first_[node] == first_[node + 1]) {
                sources_.push_back(&nodes_[node]);
            }
        }
        // In the order in which they are followed, as each takes memory of its own.
        for (std::size_t node = 0; node < n; ++node) {
            for (const auto successor : successors[node]) {
                flow::make_edge(nodes_[node], nodes_[successor]);
            }
        }
    }

    std::uint64_t run() {
        for (Node *source : sources_) {
            source->try_put(flow::continue_msg());
        }
        graph_.wait_for_all();
        return values_.back();
    }

private:
    void compute(std::size_t node) {
        const auto begin = first_[node], end = first_[node + 1];
        std::uint64_t sum = end - begin <= 1 ? 1 : 0;
        for (auto i = begin; i < end; ++i) {
            sum += values_[predecessors_[i]];
        }
        values_[node] = sum;
    }

    oneapi::tbb::global_control limit_;
    std::vector<std::uint32_t> first_;
    std::vector<std::uint32_t> predecessors_;
    std::vector<std::uint64_t> values_;
    flow::graph graph_;
    // Nodes do not move.
    std::deque<Node> nodes_;
    std::vector<Node *> sources_;
};

static std::string obey(const std::string &line, std::unique_ptr<Loaded> &loaded) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) {
        words.push_back(word);
    }
    if (words.size() == 3 && words[0] == "graph") {
        // The old graph goes first, and its limit on threads with it.
        loaded.reset();
        loaded = std::make_unique<Loaded>(std::stoul(words[1]), words[2]);
        return "value " + std::to_string(static_cast<std::int64_t>(loaded->run()));
    }
    if (words.size() == 2 && words[0] == "run" && loaded) {
        const auto n = std::stoul(words[1]);
        // Caches hold what ran before: the first run is not counted.
        loaded->run();
        const auto begin = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < n; ++i) {
            loaded->run();
        }
        const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
        return "ns " + std::to_string(elapsed.count() / static_cast<double>(n));
    }
    throw std::runtime_error("unexpected line: " + line);
}

int main() {
    std::cout << "subject oneTBB " << TBB_VERSION_MAJOR << "." << TBB_VERSION_MINOR << std::endl;
    std::unique_ptr<Loaded> loaded;
    for (std::string line; std::getline(std::cin, line);) {
        try {
            std::cout << obey(line, loaded) << std::endl;
        } catch (const std::exception &error) {
            std::cout << "error " << error.what() << std::endl;
        }
    }
}
