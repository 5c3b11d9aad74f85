# Install PyPI's nvdisasm in DIR (5 MB): that of nvcc's release if there is one, else of its major version, since a newer
# one reads older code. nvcc.sh finds it there.
# usage: [NVCC=nvcc] [PYTHON=python3] nvdisasm.sh DIR
dir=${1:?usage: nvdisasm.sh DIR}
release=$("${NVCC:-nvcc}" --version | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
[ -n "$release" ] || { echo 'nvdisasm.sh: no nvcc'; exit 1; }
mkdir -p "$dir" || exit
for version in "==$release.*" ">=$release,<$((${release%.*} + 1))"; do
    timeout -k 5 90 "${PYTHON:-python3}" -m pip install -q --no-deps --retries 1 --disable-pip-version-check --target "$dir" \
        "nvidia-cuda-nvdisasm$version" > "$dir/log" 2>&1 && exit
done
cat "$dir/log"
exit 1
