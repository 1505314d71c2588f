/** Prints each event of the traces of the worker that has this as its tail, as a line of JSON. */
const plain = (_, value) => (typeof value === "bigint" ? Number(value) : value);
const print = (event) => console.log(`trace ${JSON.stringify(event, plain)}`);

export default {
  tailStream(event) {
    print(event);
    return print;
  },
};
