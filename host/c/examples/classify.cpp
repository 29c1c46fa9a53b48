// Says which digit a picture shows, many times at once: classify_cpp MODEL PICTURE.pgm
//
// MODEL is models/mnist_cnn/model.onnx, and PICTURE a grey picture of 28 x 28 pixels, such as three.pgm.
#include <devbay.hpp>

#include <algorithm>
#include <fstream>
#include <iostream>

int main(int argc, char **argv) try {
    constexpr int side = 28;
    std::vector<char> bytes(side * side);
    std::string magic;
    int width = 0, height = 0, max = 0;
    std::ifstream file(argc == 3 ? argv[2] : "", std::ios::binary);
    file >> magic >> width >> height >> max;
    file.get();
    if (magic != "P5" || width != side || height != side || !file.read(bytes.data(), side * side)) {
        std::cerr << "usage: classify_cpp MODEL PICTURE.pgm, with a picture of 28 x 28 pixels\n";
        return 2;
    }
    std::vector<float> pixels;
    for (char byte : bytes) pixels.push_back((static_cast<unsigned char>(byte) / 255.0f - 0.1307f) / 0.3081f);

    devbay::Runtime runtime;
    devbay::Session session(runtime, devbay::Model::load(argv[1]));
    auto input = devbay::Value::wrap({1, 1, side, side}, pixels);

    // Runs in the background share plans and weights.
    std::vector<std::future<std::vector<devbay::Value>>> runs;
    for (int i = 0; i < 8; i++) runs.push_back(session.start({&input}));
    for (auto &run : runs) {
        std::vector<devbay::Value> results = run.get();
        const float *scores = results[0].data<float>();
        std::cout << "digit " << std::max_element(scores, scores + 10) - scores << '\n';
    }
    return 0;
} catch (const devbay::Error &error) {
    std::cerr << "error (" << error.kind_name() << "): " << error.what() << '\n';
    return 1;
}
