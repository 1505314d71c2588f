/**
 * Where holders and objects are, and how long a message takes between two places.
 *
 * Holders are in the urban agglomerations with 4.5 million inhabitants or more in 2020, in proportion to their
 * inhabitants. Mainland China is left out, because Cloudflare's network there is a separate one. Source of the table:
 * United Nations, Department of Economic and Social Affairs, Population Division (2018), World Urbanization Prospects:
 * The 2018 Revision, file 12 (WUP2018-F12-Cities_Over_300K), CC BY 3.0 IGO; https://population.un.org/wup/.
 */
export interface Place {
  readonly name: string;
  readonly latitude: number;
  readonly longitude: number;
}

/** Name, latitude, longitude, and thousands of inhabitants in 2020. */
const TABLE = `
Tokyo 35.69 139.69 37393
Delhi 28.67 77.22 30291
São Paulo -23.55 -46.64 22043
Mexico City 19.43 -99.14 21782
Dhaka 23.71 90.41 21006
Cairo 30.04 31.24 20901
Mumbai 19.07 72.88 20411
Osaka 34.68 135.55 19165
New York-Newark 40.72 -74.00 18804
Karachi 24.91 67.08 16094
Istanbul 41.01 28.95 15190
Buenos Aires -34.61 -58.40 15154
Kolkata 22.53 88.36 14850
Lagos 6.45 3.40 14368
Kinshasa -4.33 15.31 14342
Manila 14.60 120.98 13923
Rio de Janeiro -22.90 -43.21 13458
Lahore 31.55 74.34 12642
Moscow 55.76 37.62 12538
Los Angeles-Long Beach-Santa Ana 34.03 -118.24 12447
Bangalore 12.97 77.59 12327
Paris 48.85 2.35 11017
Bogotá 4.61 -74.08 10978
Chennai 13.05 80.25 10971
Jakarta -6.21 106.84 10770
Lima -12.04 -77.03 10719
Bangkok 13.72 100.53 10539
Hyderabad 17.38 78.47 10004
Seoul 37.57 126.98 9963
Nagoya 35.18 136.91 9552
London 51.51 -0.13 9304
Tehran 35.69 51.42 9135
Chicago 41.85 -87.65 8865
Ho Chi Minh City 10.75 106.67 8602
Luanda -8.84 13.23 8330
Ahmadabad 23.03 72.62 8059
Kuala Lumpur 3.14 101.69 7997
Hong Kong 22.28 114.19 7548
Riyadh 24.69 46.71 7231
Surat 21.17 72.83 7185
Baghdad 33.34 44.40 7144
Santiago -33.46 -70.65 6767
Dar es Salaam -6.82 39.27 6702
Pune 18.52 73.86 6629
Madrid 40.42 -3.70 6618
Houston 29.76 -95.37 6371
Dallas-Fort Worth 32.73 -97.32 6301
Toronto 43.70 -79.42 6197
Miami 25.79 -80.20 6122
Belo Horizonte -19.92 -43.94 6084
Singapore 1.29 103.85 5935
Khartoum 15.55 32.53 5829
Atlanta 33.76 -84.40 5803
Johannesburg -26.20 28.04 5783
Philadelphia 39.95 -75.16 5717
Barcelona 41.39 2.16 5586
Kitakyushu-Fukuoka 33.61 130.42 5529
Saint Petersburg 59.93 30.33 5468
Yangon 16.81 96.16 5332
Washington, D.C. 38.90 -77.04 5322
Alexandria 31.19 29.90 5281
Abidjan 5.35 -4.03 5203
Guadalajara 20.67 -103.33 5179
Ankara 39.92 32.85 5118
Chittagong 22.33 91.84 5020
Melbourne -37.81 144.96 4968
Sydney -33.87 151.21 4926
Monterrey 25.67 -100.32 4874
Addis Ababa 9.03 38.75 4794
Nairobi -1.28 36.82 4735
Hà Noi 21.02 105.84 4678
Brasília -15.78 -47.93 4646
Cape Town -33.93 18.42 4618
Jiddah 21.52 39.22 4610
Phoenix-Mesa 33.45 -112.07 4511
`;

/** A place for objects in each region that a `locationHint` names. Holders are in the region of the nearest one. */
export const REGIONS = {
  wnam: { name: "San Jose", latitude: 37.34, longitude: -121.89 },
  enam: { name: "Ashburn", latitude: 39.04, longitude: -77.49 },
  sam: { name: "São Paulo", latitude: -23.55, longitude: -46.64 },
  weur: { name: "Paris", latitude: 48.85, longitude: 2.35 },
  eeur: { name: "Warsaw", latitude: 52.23, longitude: 21.01 },
  apac: { name: "Singapore", latitude: 1.29, longitude: 103.85 },
  oc: { name: "Sydney", latitude: -33.87, longitude: 151.21 },
  afr: { name: "Johannesburg", latitude: -26.2, longitude: 28.04 },
  me: { name: "Dubai", latitude: 25.2, longitude: 55.27 },
} as const satisfies Readonly<Record<string, Place>>;

/** The region that is nearest to a place. */
export function regionOf(place: Place): keyof typeof REGIONS {
  const names = Object.keys(REGIONS) as (keyof typeof REGIONS)[];
  return names.reduce((a, b) => (delayMs(place, REGIONS[b]) < delayMs(place, REGIONS[a]) ? b : a));
}

interface City extends Place {
  readonly thousands: number;
}

const CITIES: readonly City[] = TABLE.trim()
  .split("\n")
  .map((line) => {
    const [, name = "", latitude, longitude, thousands] = /^(.*) (\S+) (\S+) (\S+)$/.exec(line) ?? [];
    return { name, latitude: Number(latitude), longitude: Number(longitude), thousands: Number(thousands) };
  });
const THOUSANDS = CITIES.reduce((sum, { thousands }) => sum + thousands, 0);

/** A city, drawn by its inhabitants. */
export function drawCity(random: () => number): Place {
  let left = random() * THOUSANDS;
  return CITIES.find(({ thousands }) => (left -= thousands) < 0) ?? (CITIES[0] as City);
}

const EARTH_RADIUS_KM = 6_371;
/** Light in glass: two thirds of its speed in a vacuum. */
const KM_PER_MS = 200;
/** Cables are longer than the great circle: New York to London takes 84 ms both ways here, Virginia to Singapore 220. */
const PATH_FACTOR = 1.4;
/** The way to and from the network, and the processing on it. */
const CONSTANT_MS = 3;

/** How long a message takes one way, in milliseconds. */
export function delayMs(from: Place, to: Place): number {
  const radians = (degrees: number) => (degrees * Math.PI) / 180;
  const [a, b] = [radians(from.latitude), radians(to.latitude)];
  const half = (angle: number) => Math.sin(angle / 2) ** 2;
  const across = half(b - a) + Math.cos(a) * Math.cos(b) * half(radians(to.longitude - from.longitude));
  const km = 2 * EARTH_RADIUS_KM * Math.asin(Math.sqrt(across));
  return (km / KM_PER_MS) * PATH_FACTOR + CONSTANT_MS;
}
