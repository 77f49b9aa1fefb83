// Draws one batch with the native decoder on an emulated CPU. Reads sizes, weights and inputs from one
// file, and writes the results to another.
//
// Input file, all in the order of the structs: Config; each tensor of Weights, then of each layer, as a
// count of floats and the floats; the number of slots to begin, their numbers and lengths; the arrays of
// Arrays.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "../../kernels/native/decoder.cpp"

namespace {

std::FILE* file;

void read(void* target, size_t bytes) {
    if (bytes && std::fread(target, bytes, 1, file) != 1) std::exit(3);
}

template <typename T>
std::vector<T> read_array(size_t count) {
    std::vector<T> values(count);
    read(values.data(), count * sizeof(T));
    return values;
}

std::deque<std::vector<float>> tensors;

const float* read_tensor() {
    int64_t count;
    read(&count, sizeof count);
    if (count < 0) return nullptr;
    tensors.push_back(read_array<float>(static_cast<size_t>(count)));
    return tensors.back().data();
}

template <typename T>
void write(const std::vector<T>& values) {
    if (std::fwrite(values.data(), sizeof(T), values.size(), file) != values.size()) std::exit(4);
}

}  // namespace

int main(int, char** arguments) {
    file = std::fopen(arguments[1], "rb");
    if (!file) return 2;
    Config config;
    read(&config, sizeof config);
    Weights weights;
    constexpr size_t NAMED = offsetof(Weights, layers) / sizeof(const float*);
    auto* const named = reinterpret_cast<const float**>(&weights);
    for (size_t i = 0; i < NAMED; ++i) named[i] = read_tensor();
    std::vector<LayerWeights> layers(static_cast<size_t>(config.n_layers));
    for (LayerWeights& layer : layers)
        for (size_t i = 0; i < sizeof layer / sizeof(const float*); ++i)
            reinterpret_cast<const float**>(&layer)[i] = read_tensor();
    weights.layers = layers.data();

    int32_t count;
    read(&count, sizeof count);
    const auto slots = read_array<int32_t>(static_cast<size_t>(count));
    const auto lengths = read_array<int32_t>(static_cast<size_t>(count));
    const auto N = static_cast<size_t>(config.max_slots);
    const auto T = static_cast<size_t>(config.height * config.width);
    const auto steps = T * static_cast<size_t>(config.channels / config.step_channels);
    // In the order of `Arrays`, in which test_neon.py writes them.
    auto canvas = read_array<uint8_t>(N * T * static_cast<size_t>(config.channels));
    auto bits = read_array<float>(N * T);
    auto positions = read_array<int32_t>(N);
    const auto known = read_array<uint8_t>(N * T);
    const auto seed = read_array<uint64_t>(N);
    const auto particle = read_array<uint64_t>(N);
    const auto temperature = read_array<float>(N);
    const auto label = read_array<int32_t>(N);
    const auto top_p = read_array<float>(N);
    const auto guidance = read_array<float>(N);
    const auto twin = read_array<int32_t>(N);
    std::fclose(file);

    const Arrays arrays{
        .canvas = canvas.data(), .bits = bits.data(), .positions = positions.data(),
        .known = known.data(), .seed = seed.data(), .particle = particle.data(),
        .temperature = temperature.data(), .label = label.data(), .top_p = top_p.data(),
        .guidance = guidance.data(), .twin = twin.data()};
    char reason[200];
    scanline::Decoder* const decoder = scanline_open(&config, &weights, &arrays, reason, sizeof reason);
    if (!decoder) return 5;
    std::vector<float> trace(N * steps * static_cast<size_t>(config.head_outputs));
    scanline_trace(decoder, trace.data());
    if (scanline_begin(decoder, slots.data(), lengths.data(), count) != 0) return 6;
    std::vector<int32_t> drawn;  // twins follow their images
    for (const int32_t slot : slots)
        if (std::find(twin.begin(), twin.end(), slot) == twin.end()) drawn.push_back(slot);
    for (size_t done = 0; done < T; done += 5)
        if (scanline_step(decoder, drawn.data(), static_cast<int>(drawn.size()), 5) != 0) return 7;
    scanline_close(decoder);

    file = std::fopen(arguments[2], "wb");
    if (!file) return 2;
    write(canvas);
    write(bits);
    write(trace);
    std::fclose(file);
    std::puts(scanline_isa());
    return 0;
}
