// Runs a saved program without Python, an AOTInductor package (.pt2) or TorchScript (.pt):
//
//     serve PACKAGE MODEL INPUT OUTPUT
//
// PACKAGE is the folder that torch_onnxpool is installed in. INPUT and OUTPUT are tensors, as torch.save writes and
// torch.load reads them. Built like any program that uses libtorch: find_package(Torch) and ${TORCH_LIBRARIES} in
// CMake.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/script.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace {

// Registers torch_onnxpool's operators, which stay for as long as the process does.
void load_operators(const std::string& package) {
    std::vector<std::string> names{"libtorch_onnxpool.so"};
    if (torch::hasCUDA()) names.push_back("libtorch_onnxpool_cuda.so");
    for (const std::string& name : names) {
        if (!dlopen((package + "/" + name).c_str(), RTLD_LAZY)) throw std::runtime_error(dlerror());
    }
}

torch::Tensor read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return torch::jit::pickle_load({std::istreambuf_iterator<char>(file), {}}).toTensor();
}

void write(const std::string& path, const torch::Tensor& tensor) {
    const std::vector<char> bytes = torch::jit::pickle_save(tensor);
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

torch::Tensor run(const std::string& model, const torch::Tensor& input) {
    const c10::InferenceMode no_gradients;
    const std::string suffix = ".pt2";
    if (model.size() >= suffix.size() && model.compare(model.size() - suffix.size(), suffix.size(), suffix) == 0) {
        return torch::inductor::AOTIModelPackageLoader(model).run({input}).at(0);
    }
    return torch::jit::load(model).forward({input}).toTensor();
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) {
        std::cerr << "usage: serve PACKAGE MODEL INPUT OUTPUT\n";
        return 2;
    }
    try {
        load_operators(arguments[1]);
        write(arguments[4], run(arguments[2], read(arguments[3])));
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
